// The pickle machine alone: values, refusals, hostile programs.
#include <gtest/gtest.h>

#include <string>

#include "sources/snapshot/pickle_machine.h"
#include "sources/snapshot/pickle_opcodes.h"

namespace {

using namespace tonnage;
using namespace tonnage::sources;
using pickle::Heap;
using pickle::Machine;
using pickle::ObjectKind;
using pickle::Tag;
using pickle::Value;

using namespace std::string_literals;

struct Program {
  explicit Program(std::string bytes)
      : program(std::move(bytes)), input(Input::from_memory(program).value()), machine(*input) {
    auto value = machine.run();
    if (value)
      result = *value;
    else
      error = value.error();
    ok = value.has_value();
  }
  Heap& heap() { return machine.heap(); }
  std::string program;
  std::unique_ptr<Input> input;
  Machine machine;
  bool ok = false;
  Value result;
  Error error;
};

std::string u32(uint32_t number) { return std::string(reinterpret_cast<const char*>(&number), 4); }
std::string u64(uint64_t number) { return std::string(reinterpret_cast<const char*>(&number), 8); }

TEST(PickleMachine, Integers) {
  struct Case {
    std::string program;
    int64_t expected;
  };
  for (const auto& [program, expected] :
       std::initializer_list<Case>{{"K\x07.", 7},
                                   {"M\x01\x02.", 0x201},
                                   {"J\xff\xff\xff\xff.", -1},
                                   {"\x8a\x00."s, 0},
                                   {"\x8a\x01\xff."s, -1},
                                   {"\x8a\x02\x00\x01."s, 256},
                                   {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."s, INT64_MAX},
                                   {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s, INT64_MIN},
                                   {"\x8a\x0a\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00."s, 5},
                                   {"\x8b\x03\x00\x00\x00\x01\x02\x03."s, 0x30201},
                                   {"I-12\n.", -12},
                                   {"L123456789012L\n.", 123456789012},
                                   {"I01\n.", 1}}) {
    Program run(program);
    ASSERT_TRUE(run.ok) << run.error.text();
    EXPECT_EQ(run.heap().to_signed(run.result), expected) << testing::PrintToString(program);
  }
}

TEST(PickleMachine, UnsignedNumbersBeyond63Bits) {
  Program run("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s);
  ASSERT_TRUE(run.ok);
  EXPECT_EQ(run.heap().to_unsigned(run.result), UINT64_MAX);
  EXPECT_EQ(run.heap().to_signed(run.result), std::nullopt);
  Program larger("\x8a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00."s);  // 65 bits: kept as "too
                                                                         // large", never cut off
  ASSERT_TRUE(larger.ok);
  EXPECT_EQ(larger.heap().to_unsigned(larger.result), std::nullopt);
  Program text("L18446744073709551615L\n.");
  ASSERT_TRUE(text.ok);
  EXPECT_EQ(text.heap().to_unsigned(text.result), UINT64_MAX);
  Program negative("J\xfe\xff\xff\xff.");
  ASSERT_TRUE(negative.ok);
  EXPECT_EQ(negative.heap().to_unsigned(negative.result), std::nullopt);
}

TEST(PickleMachine, Strings) {
  const std::string long_text(100000, 'x');
  struct Case {
    std::string program, expected;
  };
  for (const auto& [program, expected] :
       std::initializer_list<Case>{{"\x8c\x02hi.", "hi"},
                                   {"X"s + u32(2) + "hi.", "hi"},
                                   {"X"s + u32(100000) + long_text + ".", long_text},
                                   {"\x8d"s + u64(2) + "hi.", "hi"},
                                   {"U\x02hi.", "hi"},
                                   {"Vh\\u00e9\\U0001F600\n.", "h\xc3\xa9\xf0\x9f\x98\x80"},
                                   {"S'a\\'b\\n\\x41'\n.", "a'b\nA"}}) {
    Program run(program);
    ASSERT_TRUE(run.ok) << run.error.text();
    ASSERT_TRUE(run.result.is(Tag::kString));
    EXPECT_EQ(run.heap().string(run.result), expected);
  }
}

TEST(PickleMachine, ContainersAreSharedThroughTheMemo) {
  // [x, x] with x = {"k": 1}
  Program run(
      "\x80\x04]\x94(}\x94\x8c\x01k\x94K\x01sh\x01"
      "e.");
  ASSERT_TRUE(run.ok) << run.error.text();
  const auto& list = run.heap().object(run.result);
  ASSERT_EQ(list.size, 2u);
  EXPECT_EQ(list.items[0].bits, list.items[1].bits);
  EXPECT_EQ(run.heap().to_signed(
                run.heap().find(run.heap().object(list.items[0]), run.heap().intern("k"))),
            1);
}

TEST(PickleMachine, LastOfEqualKeysWins) {
  Program run("}(\x8c\x01kK\x01\x8c\x01kK\x02u.");
  ASSERT_TRUE(run.ok);
  EXPECT_EQ(
      run.heap().to_signed(run.heap().find(run.heap().object(run.result), run.heap().intern("k"))),
      2);
}

TEST(PickleMachine, RefusesWhatCouldImportOrCall) {
  struct Case {
    std::string program, name;
    uint64_t offset;
  };
  for (const auto& [program, name, offset] : std::initializer_list<Case>{
           {"cos\nsystem\n(S'true'\ntR.", "GLOBAL os system", 0},
           {"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL os system", 14},
           {"(ios\nsystem\n.", "INST os system", 1},
           {"(o.", "OBJ", 1},
           {"N)\x81.", "NEWOBJ", 2},
           {"N)}\x92.", "NEWOBJ_EX", 3},
           {"N)R.", "REDUCE", 2},
           {"NNb.", "BUILD", 2},
           {"\x82\x01.", "EXT1", 0},
           {"\x83\x01\x01.", "EXT2", 0},
           {"\x84\x01\x01\x01\x01.", "EXT4", 0},
           {"Pid\n.", "PERSID", 0},
           {"NQ.", "BINPERSID", 1},
           {"\x97.", "NEXT_BUFFER", 0},
           {"N\x98.", "READONLY_BUFFER", 1}}) {
    Program run(program);
    ASSERT_FALSE(run.ok) << name;
    EXPECT_EQ(run.error.code, ErrorCode::kUnsupported) << name;
    EXPECT_NE(run.error.message.find("(" + name + ")"), std::string::npos) << run.error.message;
    EXPECT_NE(run.error.message.find("offset " + std::to_string(offset)), std::string::npos)
        << run.error.message;
  }
}

TEST(PickleMachine, NoOtherOpcodeIsAccepted) {
  for (int byte = 0; byte < 256; ++byte) {
    if (*pickle::opcode_name(static_cast<uint8_t>(byte))) continue;
    Program run(std::string(1, static_cast<char>(byte)) + std::string(40, '0'));
    ASSERT_FALSE(run.ok) << byte;
    EXPECT_EQ(run.error.code, ErrorCode::kCorrupt) << byte;
  }
}

TEST(PickleMachine, BrokenPrograms) {
  for (const std::string& program : {"."s,
                                     "e."s,
                                     "(e."s,
                                     "u."s,
                                     "(u."s,
                                     "N(NNu."s,
                                     "}(Nu."s,
                                     "N(Ne."s,
                                     "a."s,
                                     "Na."s,
                                     "Ns."s,
                                     "NNNs."s,
                                     "0."s,
                                     "1."s,
                                     "2."s,
                                     "t."s,
                                     "\x85."s,
                                     "h\x05."s,
                                     "j\x05\x00\x00\x00."s,
                                     "g7\n."s,
                                     "gx\n."s,
                                     "\x94."s,
                                     "q\x01."s,
                                     "Ix\n."s,
                                     "Fx\n."s,
                                     "\x8b\xff\xff\xff\xff."s,
                                     "(N0000."s,
                                     "](K\x01(0e"s,
                                     "\x80\x09."s,
                                     "\x90."s,
                                     "N(\x90."s,
                                     "(Nd."s}) {
    Program run(program);
    EXPECT_FALSE(run.ok) << testing::PrintToString(program);
  }
}

TEST(PickleMachine, LyingLengthsEndAsTruncation) {
  for (const std::string& program :
       {"X"s + u32(1000000000) + "abc", "\x8d"s + u64(1ull << 62) + "abc",
        "\x8b"s + u32(1000000000) + "a", "B"s + u32(4000000000u) + "abc",
        "\x8e"s + u64(UINT64_MAX) + "abc", "\x96"s + u64(1ull << 40), "\x8c\xff"s, "\x8a\xffzz"s,
        "T"s + u32(900000000) + "x"}) {
    Program run(program);
    ASSERT_FALSE(run.ok);
    EXPECT_EQ(run.error.code, ErrorCode::kCorrupt) << run.error.text();
    EXPECT_TRUE(run.machine.truncated());
    EXPECT_LT(run.heap().memory_bytes(), 8u << 20);
  }
  Program frame("\x80\x04\x95"s + u64(UINT64_MAX) +
                "N.");  // a frame's length is a hint that nobody needs
  EXPECT_TRUE(frame.ok);
}

TEST(PickleMachine, HugeMemoIndexCostsLittle) {
  Program run("Nr"s + u32(0xfffffff0u) + "0j" + u32(0xfffffff0u) + ".");
  ASSERT_TRUE(run.ok) << run.error.text();
  EXPECT_TRUE(run.result.is(Tag::kNone));
}

TEST(PickleMachine, DeepNestingDoesNotRecurse) {
  std::string program;
  for (int i = 0; i < 200000; ++i) program += "]";
  for (int i = 0; i < 199999; ++i) program += "a";
  Program run(program + ".");
  ASSERT_TRUE(run.ok) << run.error.text();
  Program marks(std::string(300000, '(') + ".");
  EXPECT_FALSE(marks.ok);
}

TEST(PickleMachine, CyclesAreKeptAsSuch) {
  Program run("]\x94h\x00"s + "a.");
  ASSERT_TRUE(run.ok) << run.error.text();
  const auto& list = run.heap().object(run.result);
  ASSERT_EQ(list.size, 1u);
  EXPECT_EQ(list.items[0].bits, run.result.bits);
}

TEST(PickleMachine, ManyReferencesDoNotMultiply) {
  // Each list holds the one before ten times: 10^40 leaves if it were expanded.
  std::string program = "]q\x00"s;
  for (int level = 1; level <= 40; ++level) {
    program += "](";
    for (int i = 0; i < 10; ++i) program += "h"s + static_cast<char>(level - 1);
    program += "eq"s + static_cast<char>(level);
  }
  Program run(program + ".");
  ASSERT_TRUE(run.ok) << run.error.text();
  EXPECT_LT(run.heap().memory_bytes(), 4u << 20);
}

TEST(PickleMachine, MemoryStaysInProportionToTheInput) {
  // 48 MiB of empty dicts that are all kept would take over a gigabyte.
  std::string program(48 << 20, '}');
  Program run(program + ".");
  ASSERT_FALSE(run.ok);
  EXPECT_EQ(run.error.code, ErrorCode::kLimit) << run.error.text();
}

TEST(PickleMachine, EveryTruncationIsAnError) {
  const std::string program =
      "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01k\x94]("
      "K\x01M\x01\x02J\x01\x02\x03\x04G@\x09!\xfb"
      "TD-\x18\x8a\x02\x00\x01X\x02\x00\x00\x00hiN\x88\x89K\x01K\x02\x86I7\nh\x01"
      "eu."s;
  ASSERT_TRUE(Program(program).ok);
  for (size_t size = 0; size < program.size(); ++size) {
    Program run(program.substr(0, size));
    ASSERT_FALSE(run.ok) << size;
    EXPECT_EQ(run.error.code, ErrorCode::kCorrupt) << size << run.error.text();
    EXPECT_TRUE(run.machine.truncated()) << size;
  }
}

}  // namespace
