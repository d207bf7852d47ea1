#include "gpu/ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace tonnage::gpu {
namespace {

constexpr uint64_t kCard = 1000;

// A machine whose processes live and die as the test says.
struct Machine {
  std::unique_ptr<abi::Session> session{new abi::Session{}};
  std::set<int> living;  // slots
  int locked = 0;
  std::vector<uint64_t> gone;  // who was found dead
  Machine() {
    session->device_count = 2;
    session->devices[0].total_bytes = session->devices[1].total_bytes = kCard;
  }
};

class TestProcess : public ProcessWatch {
 public:
  TestProcess(Machine& machine, int32_t pid) : machine_(machine) {
    attached = ledger.attach(machine.session.get(), this, pid);
  }
  bool hold_slot(int slot) override {
    if (!machine_.living.insert(slot).second) return false;
    slot_ = slot;
    return true;
  }
  bool slot_lives(int slot, int32_t) override { return machine_.living.contains(slot); }
  void lock() override { EXPECT_EQ(1, ++machine_.locked); }
  void unlock() override { EXPECT_EQ(0, --machine_.locked); }
  void tell_gone(uint64_t identity) override {
    EXPECT_EQ(1, machine_.locked);  // before anybody else can have the memory
    machine_.gone.push_back(identity);
  }
  void die() { machine_.living.erase(slot_); }
  int slot() const { return slot_; }

  Ledger ledger;
  bool attached = false;

 private:
  Machine& machine_;
  int slot_ = -1;
};

TEST(Ledger, RefusesWhatDoesNotFit) {
  Machine machine;
  TestProcess a(machine, 10), b(machine, 11);
  EXPECT_TRUE(a.ledger.charge(0, 600));
  EXPECT_FALSE(b.ledger.charge(0, 401));
  EXPECT_TRUE(b.ledger.charge(0, 400));
  EXPECT_FALSE(a.ledger.charge(0, 1));
  EXPECT_FALSE(a.ledger.charge(1, UINT64_MAX));
  EXPECT_TRUE(a.ledger.charge(1, kCard));
  EXPECT_EQ(1000u, a.ledger.used(0));
  EXPECT_EQ(0u, b.ledger.free(0));
  EXPECT_EQ(600u, a.ledger.used_by_this_process(0));
  a.ledger.refund(0, 100);
  EXPECT_EQ(100u, b.ledger.free(0));
}

TEST(Ledger, TheDeadGiveBackAtOnce) {
  Machine machine;
  TestProcess a(machine, 10), b(machine, 11);
  EXPECT_TRUE(a.ledger.charge(0, 900));
  a.die();
  EXPECT_EQ(0u, b.ledger.used(0));
  EXPECT_TRUE(b.ledger.charge(0, 1000));
  TestProcess c(machine, 12);
  EXPECT_EQ(a.slot(), c.slot());
  EXPECT_EQ(0u, c.ledger.used_by_this_process(0));
}

TEST(Ledger, WhoFindsTheDeadSaysSo) {
  Machine machine;
  TestProcess a(machine, 10), b(machine, 11), c(machine, 12);
  EXPECT_TRUE(a.ledger.charge(0, 300));
  EXPECT_TRUE(b.ledger.charge(0, 300));
  const uint64_t dead[] = {a.ledger.identity(), b.ledger.identity()};
  a.die();
  b.die();
  EXPECT_TRUE(machine.gone.empty());
  EXPECT_TRUE(c.ledger.charge(0, 900));
  EXPECT_EQ((std::vector<uint64_t>{dead[0], dead[1]}), machine.gone);
  EXPECT_EQ(100u, c.ledger.free(0));
  EXPECT_EQ(2u, machine.gone.size());  // once
  c.die();
  TestProcess d(machine, 13);  // in the first slot, which is nobody's any more
  EXPECT_NE(dead[0], d.ledger.identity());
  EXPECT_EQ(kCard, d.ledger.free(0));
  EXPECT_EQ(3u, machine.gone.size());
}

TEST(Ledger, AProcessThatCallsExecStartsAnew) {
  Machine machine;
  TestProcess a(machine, 10);
  EXPECT_TRUE(a.ledger.charge(0, 900));
  const uint64_t before = a.ledger.identity();
  a.die();  // the kernel drops its locks at exec
  TestProcess again(machine, 10);
  EXPECT_EQ(a.slot(), again.slot());
  EXPECT_EQ((std::vector<uint64_t>{before}), machine.gone);
  EXPECT_EQ(0u, again.ledger.used(0));
}

TEST(Ledger, NumbersOfProcessesMayRepeat) {  // in two PID namespaces
  Machine machine;
  TestProcess a(machine, 1), b(machine, 1);
  EXPECT_NE(a.slot(), b.slot());
  EXPECT_TRUE(a.ledger.charge(0, 600));
  EXPECT_FALSE(b.ledger.charge(0, 600));
  EXPECT_EQ(600u, b.ledger.used(0));
}

TEST(Ledger, HasAnEnd) {
  Machine machine;
  std::vector<std::unique_ptr<TestProcess>> all;
  for (int i = 0; i < abi::kMaxProcesses; i++) {
    all.push_back(std::make_unique<TestProcess>(machine, 100 + i));
    ASSERT_TRUE(all.back()->attached);
  }
  TestProcess one_more(machine, 5);
  EXPECT_FALSE(one_more.attached);
  EXPECT_FALSE(one_more.ledger.charge(0, 1));
}

TEST(Ledger, SharedMemoryIsChargedOnce) {
  Machine machine;
  SharedCharge charge{};
  TestProcess a(machine, 10), b(machine, 11), c(machine, 12);
  EXPECT_FALSE(b.ledger.join(charge));
  EXPECT_TRUE(a.ledger.charge(0, 300));
  a.ledger.share(charge);
  EXPECT_TRUE(b.ledger.join(charge));
  EXPECT_TRUE(c.ledger.join(charge));
  EXPECT_EQ(300u, a.ledger.used(0));
  a.ledger.leave(charge, 0, 300);
  EXPECT_EQ(300u, a.ledger.used(0));
  EXPECT_EQ(0u, a.ledger.used_by_this_process(0));
  a.die();
  EXPECT_EQ(300u, b.ledger.used(0));
  b.ledger.leave(charge, 0, 300);
  EXPECT_EQ(300u, c.ledger.used_by_this_process(0));
  c.ledger.leave(charge, 0, 300);
  EXPECT_EQ(0u, c.ledger.used(0));
  EXPECT_FALSE(b.ledger.join(charge));
}

TEST(Ledger, AHolderThatWasKilledInheritsNothing) {
  Machine machine;
  SharedCharge charge{};
  TestProcess a(machine, 10), b(machine, 11);
  EXPECT_TRUE(a.ledger.charge(0, 300));
  a.ledger.share(charge);
  EXPECT_TRUE(b.ledger.join(charge));
  b.die();
  TestProcess c(machine, 12);  // has b's slot, and is not b
  EXPECT_EQ(b.slot(), c.slot());
  a.ledger.leave(charge, 0, 300);
  EXPECT_EQ(0u, a.ledger.used(0));
  EXPECT_EQ(0u, c.ledger.used_by_this_process(0));
}

}  // namespace
}  // namespace tonnage::gpu
