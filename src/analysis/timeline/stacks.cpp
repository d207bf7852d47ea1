#include "analysis/timeline/stacks.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sources/snapshot/native_frames.h"

namespace tonnage::analysis {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> ends) {
  for (std::string_view end : ends) {
    if (text.ends_with(end)) return true;
  }
  return false;
}

// The path inside the torch package ("nn/modules/conv.py"); empty if the file is not PyTorch's.
std::string_view path_in_torch(std::string_view file) {
  for (std::string_view root : {"site-packages/torch/", "dist-packages/torch/"}) {
    if (size_t at = file.rfind(root); at != std::string_view::npos)
      return file.substr(at + root.size());
  }
  // A checkout; its C++ has the same root.
  constexpr std::string_view kCheckout = "/pytorch/torch/";
  if (size_t at = file.rfind(kCheckout); at != std::string_view::npos && file.ends_with(".py"))
    return file.substr(at + kCheckout.size());
  return {};
}

// Sources of PyTorch, Python, the C library and compilers, under the folders in which their makers
// built them. A user's own C++ is the user's.
bool built_elsewhere(const std::string& file) {
  if (file.starts_with("./") || file.starts_with("../") || file.ends_with(".o") ||
      file.ends_with(".S") || file.ends_with("/thread.cc") || file == "thread.cc")
    return true;
  for (const char* part :
       {"/Python-3",       "/python-3",     "/cpython",      "libstdc++",     "/sysdeps/",
        "/nptl/",          "/csu/",         "/glibc",        "/gcc-",         "/pybind11/",
        "/bits/",          "/include/c++/", "/Python/ceval", "/Python/",      "/Objects/",
        "feedstock_root/", "/croot/",       "/third_party/", "/usr/include/", "/cuda/include/",
        "/thrust/",        "/cub/"})
    if (contains(file, part)) return true;
  return false;
}

// The interpreter's own program: "/usr/bin/python3.11", "/opt/conda/bin/python".
bool is_interpreter(const std::string& file) {
  std::string_view name = file;
  name.remove_prefix(name.rfind('/') + 1);
  if (!name.starts_with("python")) return false;
  name.remove_prefix(std::string_view("python").size());
  return name.find_first_not_of("0123456789.") == std::string_view::npos;
}

// What one file tells, worked out once per file name.
struct FileFacts {
  FileOwner owner = FileOwner::kUser;
  bool optim = false, module_py = false, nn = false, functional = false, autograd = false,
       checkpoint = false, data_parallel = false;
  bool tensor_py = false, init_py = false;
  bool bare_native = false;  // "engine.cpp"
  OpFamily family = OpFamily::kNone;
};

// Paths of Windows are read as those of other systems.
std::string forward_slashes(std::string file) {
  std::replace(file.begin(), file.end(), '\\', '/');
  return file;
}

FileFacts facts_of_file(const std::string& written) {
  const std::string file = forward_slashes(written);
  FileFacts facts;
  facts.owner = owner_of(file);
  facts.bare_native = sources::is_native_file(file) && !contains(file, "/");
  if (facts.owner != FileOwner::kTorch) return facts;
  const std::string_view path = path_in_torch(file);
  facts.optim = path.starts_with("optim/");
  facts.module_py = path == "nn/modules/module.py";
  facts.nn = path.starts_with("nn/");
  facts.functional = path == "nn/functional.py" || path == "functional.py";
  facts.autograd = path.starts_with("autograd/");
  facts.checkpoint = path == "utils/checkpoint.py";
  facts.data_parallel = path == "nn/parallel/distributed.py";
  facts.tensor_py = path == "_tensor.py";
  facts.init_py = path == "nn/init.py";
  if (path == "nn/modules/linear.py") facts.family = OpFamily::kMatrix;
  if (path == "nn/modules/conv.py") facts.family = OpFamily::kConvolution;
  if (path == "nn/modules/rnn.py") facts.family = OpFamily::kRnn;
  return facts;
}

}  // namespace

FileOwner owner_of(const std::string& written) {
  if (written.find('\\') != std::string::npos) return owner_of(forward_slashes(written));
  const std::string& file = written;
  if (file.empty() || file == "??" || file == "<unknown>") return FileOwner::kNative;
  if (file.starts_with("<frozen") || file.starts_with("<__array_function__"))
    return FileOwner::kPython;
  // Code that PyTorch writes itself: FX graphs, compiled kernels.
  if (file.starts_with("<eval_with_key>") || contains(file, "/torchinductor_") ||
      contains(file, "/torch_compile_debug/"))
    return FileOwner::kTorch;
  if (!path_in_torch(file).empty()) return FileOwner::kTorch;
  // Tonnage's own recorder runs inside the program too.
  if (contains(file, "site-packages/tonnage/") || contains(file, "/python/tonnage/"))
    return FileOwner::kTorch;
  if (contains(file, "site-packages/") || contains(file, "dist-packages/"))
    return FileOwner::kPackage;
  if (contains(file, "/lib/python3") || contains(file, "/lib64/python3") ||
      contains(file, "/lib/python2"))
    return FileOwner::kPython;
  if (contains(file, ":/") && contains(file, "/Lib/")) return FileOwner::kPython;  // Windows
  // Builds of PyTorch name their C++ files by these roots; a user's own C++ is the user's.
  // Python's own and the C library's sources lie in their build folders.
  if (sources::is_native_file(file) && built_elsewhere(file)) return FileOwner::kNative;
  if (is_interpreter(file)) return FileOwner::kNative;
  if (contains(file, "/aten/src/") || contains(file, "/c10/") || contains(file, "/torch/csrc/") ||
      ends_with_any(file, {".so", ".so.1", ".so.6"}) || contains(file, ".so."))
    return FileOwner::kNative;
  return FileOwner::kUser;
}

std::string_view bare_name(std::string_view function) {
  if (function.find("::") != std::string_view::npos) return function;  // C++
  return function.substr(function.rfind('.') + 1);
}

OpFamily family_of(const std::string& op) {
  if (op.empty()) return OpFamily::kNone;
  const std::string_view name = op;
  if (contains(name, "conv")) return OpFamily::kConvolution;
  if (contains(name, "attention")) return OpFamily::kAttention;
  if (contains(name, "rnn") || contains(name, "lstm") || contains(name, "gru"))
    return OpFamily::kRnn;
  static constexpr std::array<std::string_view, 16> kMatrix = {"aten::mm",
                                                               "aten::addmm",
                                                               "aten::bmm",
                                                               "aten::baddbmm",
                                                               "aten::matmul",
                                                               "aten::linear",
                                                               "aten::addbmm",
                                                               "aten::dot",
                                                               "aten::mv",
                                                               "aten::addmv",
                                                               "aten::_addmm_activation",
                                                               "aten::_scaled_mm",
                                                               "aten::_int_mm",
                                                               "aten::linear_backward",
                                                               "aten::einsum",
                                                               "aten::addr"};
  for (std::string_view matrix : kMatrix) {
    if (name == matrix || (name.starts_with(matrix) && name.size() > matrix.size() &&
                           (name[matrix.size()] == '_' || name[matrix.size()] == '.')))
      return OpFamily::kMatrix;
  }
  static constexpr std::array<std::string_view, 6> kNodes = {"MmBackward",     "BmmBackward",
                                                             "AddmmBackward",  "MatmulBackward",
                                                             "LinearBackward", "BaddbmmBackward"};
  for (std::string_view node : kNodes) {
    if (contains(name, node)) return OpFamily::kMatrix;
  }
  return OpFamily::kNone;
}

namespace {

// What PyTorch's own functions tell: the optimizer's step, a module's call, a backward pass.
void read_torch_frame(const FileFacts& file, std::string_view function, bool outermost,
                      StackFacts& facts) {
  if (facts.family == OpFamily::kNone) facts.family = file.family;
  if (file.functional) {
    facts.in_functional = true;
    if (facts.family == OpFamily::kNone && contains(function, "attention"))
      facts.family = OpFamily::kAttention;
  }
  if (file.optim && function != "zero_grad" && function != "add_param_group" &&
      function != "__init__" && function != "load_state_dict") {
    facts.in_optimizer = true;
    if (function == "_init_group" || contains(function, "init_state")) facts.makes_state = true;
  }
  if (file.module_py) {
    if (function == "_call_impl" || function == "_wrapped_call_impl") facts.in_module = true;
    if (function == "convert" || function == "_apply") facts.converts_module = true;
  }
  if ((file.nn &&
       (function == "__init__" || function == "reset_parameters" || function == "__deepcopy__")) ||
      file.init_py)
    facts.builds_module = true;
  if (file.autograd && function == "_make_grads") facts.starts_backward = true;
  // A custom function's backward is called by the engine, so that `apply` is the outermost frame;
  // its forward's is not.
  if ((file.autograd &&
       (function == "_engine_run_backward" || (function == "apply" && outermost))) ||
      (file.checkpoint && (function == "backward" || function == "unpack_hook")))
    facts.in_backward = true;
}

class StackReader {
 public:
  explicit StackReader(const record::Record& record)
      : record_(record), files_(record.strings.size()), known_(record.strings.size()) {}

  StackFacts read(const std::vector<abi::Frame>& frames) {
    StackFacts facts;
    facts.empty = frames.empty();
    facts.only_user = !frames.empty();
    int package_frame = -1;
    for (size_t f = 0; f < frames.size(); ++f) read_frame(frames, f, package_frame, facts);
    facts.makes_buckets = makes_buckets(frames);
    const bool users =
        facts.user_frame >= 0 && (package_frame < 0 || facts.user_frame < package_frame);
    facts.line_frame = users ? facts.user_frame : package_frame;
    for (size_t f = 0; f < frames.size() && facts.line_frame < 0; ++f) {
      if (owner_of_frame(frames[f]) != FileOwner::kNative) facts.line_frame = static_cast<int>(f);
    }
    if (facts.user_frame < 0) facts.user_frame = facts.line_frame;
    return facts;
  }

 private:
  const FileFacts& file_facts(uint32_t id) {
    if (id >= files_.size()) id = 0;
    if (!known_[id]) {
      files_[id] = facts_of_file(record_.strings[id]);
      known_[id] = true;
    }
    return files_[id];
  }

  // Called by DistributedDataParallel itself, not by what it wraps.
  bool makes_buckets(const std::vector<abi::Frame>& frames) {
    for (const abi::Frame& frame : frames) {
      if (owner_of_frame(frame) == FileOwner::kNative) continue;
      const std::string_view function = bare_name(record_.string(frame.function));
      return file_facts(frame.file).data_parallel &&
             (function == "_ddp_init_helper" || function == "_pre_forward" ||
              function == "forward");
    }
    return false;
  }

  // Libraries without debug information, as PyTorch's are: a bare name without a line.
  FileOwner owner_of_frame(const abi::Frame& frame) {
    const FileFacts& file = file_facts(frame.file);
    return file.bare_native && frame.line == 0 ? FileOwner::kNative : file.owner;
  }

  void read_frame(const std::vector<abi::Frame>& frames, size_t f, int& package_frame,
                  StackFacts& facts) {
    const std::string_view function = bare_name(record_.string(frames[f].function));
    const FileOwner owner = owner_of_frame(frames[f]);
    if (owner == FileOwner::kUser) {
      if (facts.user_frame < 0) facts.user_frame = static_cast<int>(f);
      facts.in_forward |= function == "forward";
      return;
    }
    if (owner != FileOwner::kNative) facts.only_user = false;
    if (owner == FileOwner::kPackage && package_frame < 0) package_frame = static_cast<int>(f);
    if (owner == FileOwner::kNative && contains(function, "autograd::Engine"))
      facts.in_backward = true;
    if (owner == FileOwner::kTorch)
      read_torch_frame(file_facts(frames[f].file), function, f + 1 == frames.size(), facts);
  }

  const record::Record& record_;
  std::vector<FileFacts> files_;
  std::vector<bool> known_;
};

}  // namespace

Stacks::Stacks(const record::Record& record) : record_(record) {
  StackReader reader(record);
  facts_.resize(std::max<size_t>(record.stacks.size(), 1));
  for (size_t s = 0; s < record.stacks.size(); ++s) facts_[s] = reader.read(record.stacks[s]);
}

Place Stacks::place(uint32_t stack, int frame) const {
  if (stack >= record_.stacks.size() || frame < 0 ||
      static_cast<size_t>(frame) >= record_.stacks[stack].size())
    return {};
  const abi::Frame& f = record_.stacks[stack][frame];
  return {record_.string(f.file), f.line, record_.string(f.function)};
}

Place Stacks::line(uint32_t stack) const { return place(stack, (*this)[stack].line_frame); }
Place Stacks::user_line(uint32_t stack) const { return place(stack, (*this)[stack].user_frame); }

Site Stacks::site(uint32_t stack, uint32_t op, uint32_t module) const {
  return {line(stack), user_line(stack), record_.string(op), record_.string(module)};
}

Site Stacks::site(const abi::MemoryEvent& event) const {
  // The optimizer works on no module; what the thread remembers is the last one that ran.
  return site(event.stack, event.op, event.phase == Phase::kOptimizer ? abi::kNoId : event.module);
}

}  // namespace tonnage::analysis
