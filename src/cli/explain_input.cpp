#include "cli/explain_input.h"

#include <algorithm>

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

}  // namespace

Result<ExplainInput> open_explain_input(const std::string& path) {
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
  if (first->empty()) return Error{ErrorCode::kCorrupt, "the file is empty", path, ""};
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
