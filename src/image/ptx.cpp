#include "image/ptx.h"

#include <algorithm>
#include <cctype>
#include <new>
#include <string>

namespace tonnage::image {
namespace {

// What ptxas gives an ordinary kernel; only used where nothing better is known.
constexpr int32_t kAssumedRegisters = 32;
constexpr uint64_t kAssumedCodeBytesPerStatement =
    24;  // 16 bytes an instruction, one and a half per PTX statement

// Words, numbers and single punctuation marks, without comments and strings.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Empty at the end. Words start with a letter, digit or one of ._$% and include them.
  std::string_view next() {
    skip_blank();
    if (at_ >= text_.size()) return {};
    const size_t begin = at_;
    if (!is_word(text_[at_])) {
      if (text_[at_] == '"') {
        const size_t close = text_.find('"', at_ + 1);
        at_ = close == std::string_view::npos ? text_.size() : close + 1;
        return text_.substr(begin, at_ - begin);
      }
      return text_.substr(at_++, 1);
    }
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string_view peek() {
    const size_t at = at_;
    const std::string_view word = next();
    at_ = at;
    return word;
  }

 private:
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '$' ||
           c == '%';
  }
  void skip_blank() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t close = text_.find("*/", at_ + 2);
        at_ = close == std::string_view::npos ? text_.size() : close + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

uint64_t number(std::string_view word) {
  uint64_t value = 0;
  for (char c : word) {
    if (c < '0' || c > '9' || value > (1ull << 48)) break;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

// Bytes of a fundamental type: .b32, .f64, .u8, .pred, …; 0: not a type.
uint32_t type_bytes(std::string_view word) {
  if (word == ".pred") return 1;
  if (word.size() < 3 || word[0] != '.' ||
      !(word[1] == 'b' || word[1] == 'u' || word[1] == 's' || word[1] == 'f'))
    return 0;
  const uint64_t bits = number(word.substr(2));
  return bits >= 8 && bits <= 128 && bits % 8 == 0 ? static_cast<uint32_t>(bits / 8) : 0;
}

struct Declaration {
  std::string_view name;
  uint64_t size_bytes = 0;
  uint32_t align_bytes = 1;
  bool is_managed = false;
};

// Reads ".align 8 .b8 name[24]" up to (not including) one of , ; ) = or the end.
Declaration read_declaration(Scanner* scanner) {
  Declaration out;
  uint64_t element = 0, count = 1, vector = 1;
  while (true) {
    const std::string_view word = scanner->peek();
    if (word.empty() || word == "," || word == ";" || word == ")" || word == "=" || word == "{" ||
        word == "}")
      break;
    scanner->next();
    if (word == ".align") {
      out.align_bytes = static_cast<uint32_t>(
          std::min<uint64_t>(std::max<uint64_t>(number(scanner->next()), 1), 4096));
    } else if (word == ".v2") {
      vector = 2;
    } else if (word == ".v4") {
      vector = 4;
    } else if (word == ".attribute") {
      for (std::string_view inner = scanner->next(); !inner.empty() && inner != ")";
           inner = scanner->next()) {
        if (inner == ".managed") out.is_managed = true;
      }
    } else if (word == ".ptr") {
      // .ptr .global .align 16: speaks of what the parameter points to
      while (scanner->peek() == ".global" || scanner->peek() == ".const" ||
             scanner->peek() == ".shared" || scanner->peek() == ".local")
        scanner->next();
      if (scanner->peek() == ".align") {
        scanner->next();
        scanner->next();
      }
    } else if (word == "[") {
      const std::string_view length = scanner->peek();
      if (length == "]")
        count = 0;
      else
        count = std::min<uint64_t>(count * number(length), 1ull << 40);
    } else if (type_bytes(word)) {
      element = type_bytes(word);
    } else if (word[0] != '.' && word[0] != ']' &&
               !std::isdigit(static_cast<unsigned char>(word[0]))) {
      out.name = word;
    }
  }
  out.size_bytes = element * vector * count;
  out.align_bytes = std::max<uint32_t>(out.align_bytes, static_cast<uint32_t>(element * vector));
  return out;
}

struct Found {
  KernelInfo info;
  size_t first_param, param_count;
};

class PtxReader {
 public:
  PtxReader(std::string_view text, int device_sm, CodeInfo* out)
      : scanner_(text), device_sm_(device_sm), out_(out) {}

  int read(int target_sm, ArchSuffix suffix) {
    out_->sm = target_sm;
    out_->suffix = suffix;
    for (std::string_view word = scanner_.next(); !word.empty(); word = scanner_.next()) {
      if (word == ".entry")
        read_kernel();
      else if (word == ".func")
        skip_function();
      else if (word == ".global" || word == ".const")
        read_variable(word == ".const");
    }
    finish();
    return kSuccess;
  }

 private:
  void read_kernel() {
    Found found{};
    KernelInfo& info = found.info;
    info.name = scanner_.next();
    info.is_estimate = true;
    info.registers = kAssumedRegisters;
    info.ptx_version = static_cast<int16_t>(out_->sm);
    info.binary_version = static_cast<int16_t>(device_sm_);
    found.first_param = out_->params.size();
    if (scanner_.peek() == "(") read_params(&info);
    found.param_count = out_->params.size() - found.first_param;
    std::string_view word = scanner_.next();
    int32_t max_registers = 255;
    while (!word.empty() && word != "{" && word != ";") {
      int32_t triple[3] = {1, 1, 1};
      if (word == ".maxntid" || word == ".reqntid" || word == ".reqnctapercluster") {
        read_triple(triple);
        if (word == ".reqnctapercluster")
          std::copy(triple, triple + 3, info.required_cluster);
        else if (word == ".maxntid")
          info.max_threads = static_cast<int32_t>(
              std::min<int64_t>(int64_t{triple[0]} * triple[1] * triple[2], 1 << 20));
        if (word == ".reqntid") std::copy(triple, triple + 3, info.required_block);
      } else if (word == ".maxnreg") {
        max_registers = static_cast<int32_t>(std::min<uint64_t>(number(scanner_.next()), 255));
      } else if (word == ".maxclusterrank") {
        info.max_cluster_rank =
            static_cast<int32_t>(std::min<uint64_t>(number(scanner_.next()), 64));
      }
      word = scanner_.next();
    }
    if (word != "{") return;  // a declaration
    info.registers = std::min(info.registers, max_registers);
    read_body(&info);
    kernels_.push_back(found);
  }

  void read_triple(int32_t (&triple)[3]) {
    for (int i = 0; i < 3; ++i) {
      triple[i] = static_cast<int32_t>(
          std::min<uint64_t>(std::max<uint64_t>(number(scanner_.next()), 1), 1024));
      if (scanner_.peek() != ",") return;
      scanner_.next();
    }
  }

  void read_params(KernelInfo* info) {
    uint64_t offset = 0;
    scanner_.next();  // (
    for (std::string_view word = scanner_.next(); !word.empty() && word != ")";
         word = scanner_.next()) {
      if (word != ".param") continue;
      const Declaration param = read_declaration(&scanner_);
      offset = (offset + param.align_bytes - 1) / param.align_bytes * param.align_bytes;
      if (offset + param.size_bytes > 1u << 16) continue;
      out_->params.push_back(
          {static_cast<uint32_t>(offset), static_cast<uint32_t>(param.size_bytes)});
      offset += param.size_bytes;
    }
    info->param_bytes = static_cast<uint32_t>(std::min<uint64_t>(offset, 1u << 16));
  }

  void read_body(KernelInfo* info) {
    int depth = 1;
    uint64_t statements = 0, shared = 0, local = 0;
    for (std::string_view word = scanner_.next(); !word.empty(); word = scanner_.next()) {
      if (word == "{")
        ++depth;
      else if (word == "}" && --depth == 0)
        break;
      else if (word == ";")
        ++statements;
      else if (word == ".shared" || word == ".local") {
        const Declaration variable = read_declaration(&scanner_);
        uint64_t& total = word == ".shared" ? shared : local;
        total = (total + variable.align_bytes - 1) / variable.align_bytes * variable.align_bytes +
                std::min<uint64_t>(variable.size_bytes, 1u << 30);
      }
    }
    info->static_shared_bytes = static_cast<uint32_t>(std::min<uint64_t>(shared, 1u << 30));
    info->local_bytes = static_cast<uint32_t>(std::min<uint64_t>(local, 1u << 30));
    info->code_bytes = statements * kAssumedCodeBytesPerStatement;
  }

  void skip_function() {
    int depth = 0;
    for (std::string_view word = scanner_.next(); !word.empty(); word = scanner_.next()) {
      if (word == ";" && depth == 0) return;
      if (word == "{") ++depth;
      if (word == "}" && --depth <= 0) return;
    }
  }

  void read_variable(bool is_constant) {
    const Declaration variable = read_declaration(&scanner_);
    if (!variable.name.empty())
      variables_.push_back({variable.name, variable.size_bytes, is_constant, variable.is_managed});
    int depth = 0;  // an initialiser
    for (std::string_view word = scanner_.peek(); !word.empty() && !(word == ";" && depth == 0);
         word = scanner_.peek()) {
      scanner_.next();
      if (word == "{") ++depth;
      if (word == "}") --depth;
    }
  }

  void finish() {
    uint64_t name_bytes = 0;
    for (const Found& found : kernels_) name_bytes += found.info.name.size();
    for (const GlobalInfo& variable : variables_) name_bytes += variable.name.size();
    out_->names.reset(new char[name_bytes + 1]);
    char* end = out_->names.get();
    auto keep = [&end](std::string_view name) {
      std::copy(name.begin(), name.end(), end);
      end += name.size();
      return std::string_view(end - name.size(), name.size());
    };
    uint64_t constant_bytes = 0;
    for (const GlobalInfo& variable : variables_) {
      out_->globals.push_back(variable);
      out_->globals.back().name = keep(variable.name);
      (variable.is_constant ? constant_bytes : out_->variable_bytes) += variable.size_bytes;
    }
    for (const Found& found : kernels_) {
      KernelInfo info = found.info;
      info.name = keep(info.name);
      info.const_bytes = static_cast<uint32_t>(std::min<uint64_t>(constant_bytes, 1u << 16));
      info.params = {out_->params.data() + found.first_param, found.param_count};
      out_->code_bytes += info.code_bytes;
      out_->constant_bytes += info.param_bytes;
      out_->kernels.push_back(info);
    }
    out_->constant_bytes += constant_bytes;
    auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::stable_sort(out_->kernels.begin(), out_->kernels.end(), by_name);
    std::stable_sort(out_->globals.begin(), out_->globals.end(), by_name);
  }

  Scanner scanner_;
  int device_sm_;
  CodeInfo* out_;
  std::vector<Found> kernels_;
  std::vector<GlobalInfo> variables_;
};

}  // namespace

bool looks_like_ptx(Bytes text) {
  const std::string_view view(reinterpret_cast<const char*>(text.data),
                              static_cast<size_t>(text.size));
  return Scanner(view).next() == ".version";
}

bool ptx_target(std::string_view text, int* sm, ArchSuffix* suffix) {
  Scanner scanner(text);
  // .version and .target are the first directives.
  for (int i = 0; i < 16; ++i) {
    if (scanner.next() != ".target") continue;
    const std::string_view target = scanner.next();
    if (target.substr(0, 3) != "sm_") return false;
    *sm = static_cast<int>(std::min<uint64_t>(number(target.substr(3)), 9999));
    *suffix = target.back() == 'a'   ? ArchSuffix::kArchSpecific
              : target.back() == 'f' ? ArchSuffix::kFamily
                                     : ArchSuffix::kNone;
    return *sm > 0;
  }
  return false;
}

int ptx_isa(std::string_view text) {
  Scanner scanner(text);
  if (scanner.next() != ".version") return 0;
  const std::string_view version = scanner.next();
  const size_t dot = version.find('.');
  const uint64_t minor = dot == std::string_view::npos ? 0 : number(version.substr(dot + 1));
  return static_cast<int>(std::min<uint64_t>(number(version), 9999) * 10 +
                          std::min<uint64_t>(minor, 9));
}

int parse_ptx(Bytes text, int device_sm, CodeInfo* out) {
  std::string_view view(reinterpret_cast<const char*>(text.data), static_cast<size_t>(text.size));
  view = view.substr(0, view.find('\0'));
  int sm;
  ArchSuffix suffix;
  try {
    if (!looks_like_ptx({text.data, view.size()}) || !ptx_target(view, &sm, &suffix))
      return kInvalidPtx;
    return PtxReader(view, device_sm, out).read(sm, suffix);
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace tonnage::image
