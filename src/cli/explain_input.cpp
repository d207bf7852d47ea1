#include "cli/explain_input.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>

#include "cli/kept_runs.h"
#include "record/record_reader.h"
#include "sources/compressed_input.h"
#include "sources/snapshot/snapshot_reader.h"

namespace tonnage::cli {
namespace {

constexpr size_t kPeekBytes = 1024;

bool is_text(std::string_view bytes) {
  const auto odd = std::count_if(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0 ||
           (byte < 32 && byte != '\n' && byte != '\r' && byte != '\t' && byte != 0x1b && byte != 8);
  });
  return odd == 0;
}

Result<std::string> read_all(sources::Input& input) {
  std::string all;
  std::string chunk(1 << 20, '\0');
  for (;;) {
    auto got = input.read(chunk.data(), chunk.size());
    if (!got) return got.error();
    if (*got == 0) return all;
    all.append(chunk, 0, *got);
  }
}

// `last` and `last~1`, unless a file has that name.
std::optional<size_t> asks_for_kept_run(const std::string& path) {
  struct stat is {};
  return ::stat(path.c_str(), &is) == 0 ? std::nullopt : runs_back(path);
}

// Where it lies says nothing to anybody; which run it is does.
Result<record::Record> read_kept_run(const std::string& word, size_t back) {
  const auto path = find_kept_run(back);
  if (!path) return path.error();
  auto record = record::read_record(path->string());
  if (!record) return record.error();
  const auto command = record->info.find("command");
  record->source = command == record->info.end() || command->second.empty()
                       ? word
                       : fmt::format("{} ({})", word, command->second);
  return record;
}

}  // namespace

Result<record::Record> open_run(const std::string& path) {
  if (const auto back = asks_for_kept_run(path)) return read_kept_run(path, *back);
  return record::read_record(path);
}

Result<ExplainInput> open_explain_input(const std::string& path) {
  if (const auto back = asks_for_kept_run(path)) {
    auto record = read_kept_run(path, *back);
    if (!record) return record.error();
    return ExplainInput(std::make_shared<const record::Record>(std::move(*record)));
  }
  auto input = sources::Input::open(path);
  if (!input) return input.error();
  auto first = (*input)->peek(kPeekBytes);
  if (!first) return first.error();
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(first->data()),
                                       first->size());
  if (record::looks_like_record(bytes)) {
    const bool plain_file = path != "-" && (*input)->compression() == sources::Compression::kNone;
    Result<record::Record> record = Error{};
    if (plain_file) {
      record = record::read_record(path);
    } else {
      auto all = read_all(**input);
      if (!all) return all.error();
      record = record::read_record_bytes(
          {reinterpret_cast<const uint8_t*>(all->data()), all->size()}, path);
    }
    if (!record) return record.error();
    return ExplainInput(std::make_shared<const record::Record>(std::move(*record)));
  }
  if (sources::looks_like_pickle(*first)) {
    auto record = sources::read_snapshot(**input);
    if (!record) return record.error();
    return ExplainInput(std::make_shared<const record::Record>(std::move(*record)));
  }
  if (first->empty())
    return Error{ErrorCode::kCorrupt, "the file is empty", path,
                 "The program ended before it was written. Write the file again."};
  if (!is_text(*first))
    return Error{ErrorCode::kUnsupported,
                 "this is neither a PyTorch memory snapshot nor a Tonnage record nor a log", path,
                 "snapshots come from torch.cuda.memory._dump_snapshot(), records from tonnage run "
                 "--record"};
  if (path.ends_with(".py") || path.ends_with(".ipynb"))
    return Error{ErrorCode::kUnsupported, "this is a program, and no log of one", path,
                 "tonnage run -- python " + path + " runs it and reports its memory"};
  auto log = sources::read_log(**input);
  if (!log) return log.error();
  return ExplainInput(std::move(*log));
}

Result<std::shared_ptr<const record::Record>> open_record_input(const std::string& path) {
  auto input = open_explain_input(path);
  if (!input) return input.error();
  if (auto* record = std::get_if<std::shared_ptr<const record::Record>>(&*input)) return *record;
  return Error{ErrorCode::kUnsupported, "this is a log; a snapshot or a record is needed", path,
               ""};
}

}  // namespace tonnage::cli
