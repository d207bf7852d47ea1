// Small messages between the ranks of a process group, through files in the session's folder. A
// message is known to its receiver by name alone, so neither side waits to send. No locks are held
// across processes: a rank may be killed at any moment.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tonnage::recorder {

// One tensor's worth of a message. Not known: the bytes are what an unknown kernel would have
// written.
struct Contribution {
  bool known = false;
  std::string bytes;
};

struct MessageName {
  uint64_t group = 0;     // the same number on all ranks of a group, in this start of the program
  uint64_t sequence = 0;  // among the group's collectives, or the pair's messages
  bool pair = false;      // point to point
  int from = 0, to = 0;
};

// Posts one message to each receiver; names[i].to says which. Where the session's file system is
// full they go to memory; where that fails too, the receiver learns that there is nothing to come.
void post(const std::vector<MessageName>& names, const std::vector<Contribution>& contents);

// A message to this rank, which may not be there yet.
class Arrival {
 public:
  explicit Arrival(const MessageName& name) : name_(name) {}
  ~Arrival();  // a message that nobody fetched is thrown away, also if it comes later
  // Waits for the message; null if it has no such part, or does not come. After one message of a
  // rank did not come, later ones of that rank are not waited for.
  const Contribution* get(size_t index);

 private:
  const MessageName name_;
  std::mutex mutex_;
  bool taken_ = false;
  std::vector<Contribution> contents_;
};

// How long a message is waited for, and how long while not all ranks are under this run; 5 minutes
// and 20 seconds if nobody says otherwise. A rank may be compiling, or reading a checkpoint.
void set_patience(double seconds, double seconds_for_absent);

// Says that this process's rank is under this run, where RANK and WORLD_SIZE tell it and how many
// there are (torchrun's way). NCCL's own start waits for all ranks, so what is missing a while
// after is under another `tonnage run`, or under none.
void announce_rank();

// Removes what an earlier program of the same rank posted to this group and nobody fetched.
void clear_posted(uint64_t group, int from);

}  // namespace tonnage::recorder
