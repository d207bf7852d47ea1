// `tonnage doctor`: what is wrong with this machine's set-up. Every check is really made: the
// virtual driver is loaded by a process under a session, Python is asked where its PyTorch is.
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "abi/recorder_key.h"
#include "cli/cards.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "cli/process_output.h"
#include "cli/session_setup.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

struct Finding {
  enum class State { kGood, kNote, kProblem } state = State::kGood;
  std::string subject, text, hint;
};

using Findings = std::vector<Finding>;

void good(Findings& out, std::string subject, std::string text) {
  out.push_back({Finding::State::kGood, std::move(subject), std::move(text), ""});
}
void note(Findings& out, std::string subject, std::string text, std::string hint = "") {
  out.push_back({Finding::State::kNote, std::move(subject), std::move(text), std::move(hint)});
}
void problem(Findings& out, std::string subject, std::string text, std::string hint) {
  out.push_back({Finding::State::kProblem, std::move(subject), std::move(text), std::move(hint)});
}

// The hidden half of the check: runs under a session and prints what the driver that the loader
// finds answers.
int probe_driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fmt::print("{}\n", ::dlerror());
    return 1;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(::dlsym(library, "cuDeviceGetName"));
  const auto total =
      reinterpret_cast<int (*)(size_t*, int)>(::dlsym(library, "cuDeviceTotalMem_v2"));
  char text[128] = "?";
  size_t bytes = 0;
  if (!init || !name || !total) {
    fmt::print("the driver lacks a function\n");
    return 1;
  }
  if (const int error = init(0); error != 0) {
    fmt::print("cuInit answers error {}\n", error);
    return 1;
  }
  if (name(text, sizeof text, 0) != 0 || total(&bytes, 0) != 0) {
    fmt::print("the driver does not answer for device 0\n");
    return 1;
  }
  Dl_info where{};
  ::dladdr(reinterpret_cast<void*>(init), &where);
  fmt::print("{}\t{}\t{}\n", where.dli_fname == nullptr ? "" : where.dli_fname, text, bytes);
  return 0;
}

void check_virtual_driver(Findings& out, const InstallPaths& paths) {
  std::error_code ignored;
  const std::string build = paths.installed ? "install Tonnage again" : "build it: make";
  for (const char* library : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    if (!fs::exists(paths.vgpu_dir / library, ignored)) {
      return problem(out, "virtual driver", (paths.vgpu_dir / library).string() + " is not there",
                     build);
    }
  }
  auto cards = choose_cards("", "");
  if (!cards)
    return problem(out, "default GPU", cards.error().text(),
                   "set TONNAGE_GPU to a card of: tonnage gpus");
  SessionOptions options;
  options.cards = *cards;
  options.command = {"tonnage", "doctor"};
  auto files = SessionFiles::create(options, paths);
  if (!files)
    return problem(out, "session", files.error().text(),
                   "set TMPDIR to a folder that you may write to");
  const auto answer = output_of({paths.executable.string(), "doctor", "--probe-driver"},
                                child_environment(environ, paths, (*files)->session_path(), ""));
  if (!answer) return problem(out, "virtual driver", answer.error().text(), build);
  std::string text = answer->text;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t tab = text.find('\t');
  if (answer->code != 0 || tab == std::string::npos) {
    return problem(out, "virtual driver",
                   "it does not work: " + (text.empty() ? "no answer" : text), build);
  }
  if (fs::weakly_canonical(text.substr(0, tab), ignored) !=
      fs::weakly_canonical(paths.vgpu_dir / "libcuda.so.1", ignored)) {
    return problem(out, "virtual driver",
                   "another driver is found before it: " + text.substr(0, tab),
                   "does something set LD_PRELOAD, or a loader path inside the program?");
  }
  const size_t second = text.find('\t', tab + 1);
  good(out, "virtual driver",
       fmt::format("works, and answers as {} with {} bytes", text.substr(tab + 1, second - tab - 1),
                   text.substr(second + 1)));
}

void check_real_driver(Findings& out, const InstallPaths& paths) {
  const auto driver = find_real_driver(paths);
  if (!driver) return note(out, "real driver", "none on this machine (only --real needs one)");
  const auto cards = real_cards(*driver);
  if (!cards)
    return note(out, "real driver", cards.error().message + ": " + driver->string(),
                cards.error().hint);
  std::string names;
  for (const auto& card : *cards) names += (names.empty() ? "" : ", ") + std::string(card.name);
  good(out, "real driver",
       driver->string() + ": " + (names.empty() ? "no GPU" : names) +
           "; not touched without --real");
}

void check_recorder(Findings& out, const InstallPaths& paths, const std::string& torch_root) {
  const std::string name = abi::recorder_file_name(torch_root);
  std::error_code ignored;
  for (const fs::path& folder : {paths.recorder_dir, fs::path(abi::recorder_cache_dir())}) {
    if (!name.empty() && fs::exists(folder / name, ignored))
      return good(out, "recorder", "built: " + (folder / name).string());
  }
  note(out, "recorder",
       "not built for this PyTorch; the first run builds it, which takes about half a minute",
       "build it now: tonnage recorder --build " + torch_root);
}

void check_python(Findings& out, const InstallPaths& paths) {
  std::error_code ignored;
  if (!fs::exists(paths.python_dir, ignored)) {
    problem(out, "recorder", paths.python_dir.string() + " is not there",
            "without it there are no categories, phases and lines; install Tonnage again");
  }
  // Finds PyTorch without importing it.
  constexpr const char* kAsk =
      "import sys, importlib.util as u, os, runpy\n"
      "s = u.find_spec('torch')\n"
      "v = runpy.run_path(os.path.join(os.path.dirname(s.origin), 'version.py')) if s and s.origin "
      "else {}\n"
      "print('%d.%d.%d' % sys.version_info[:3], v.get('__version__', ''), v.get('cuda') or '',"
      " os.path.dirname(s.origin) if s and s.origin else '', sep='\\t')\n";
  for (const char* python : {"python", "python3"}) {
    std::vector<std::string> environment;
    for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
    const auto answer = output_of({python, "-c", kAsk}, environment);
    if (!answer || answer->code == 127) continue;
    std::vector<std::string> fields(1);
    for (const char c : answer->text) {
      if (c == '\t') {
        fields.emplace_back();
      } else if (c != '\n') {
        fields.back() += c;
      }
    }
    if (answer->code != 0 || fields.size() != 4) {
      return problem(out, "Python", std::string(python) + " does not run",
                     "is the environment broken?");
    }
    good(out, "Python", std::string(python) + " " + fields[0]);
    if (fields[1].empty()) {
      return note(out, "PyTorch", std::string("not installed for this ") + python,
                  "activate the environment that has it");
    }
    if (fields[2].empty()) {
      return problem(
          out, "PyTorch",
          fields[1] + " in " + fields[3] + " is a build without CUDA: it never uses a GPU",
          "install a CUDA build of PyTorch; it needs no GPU to run under Tonnage");
    }
    good(out, "PyTorch", fields[1] + " for CUDA " + fields[2] + " in " + fields[3]);
    return check_recorder(out, paths, fields[3]);
  }
  note(out, "Python", "neither python nor python3 is on PATH", "only programs in Python need it");
}

void check_tmp(Findings& out) {
  const char* set = ::getenv("TMPDIR");
  const std::string folder = set != nullptr && *set != '\0' ? set : "/tmp";
  struct statvfs is {};
  if (::access(folder.c_str(), W_OK) != 0 || ::statvfs(folder.c_str(), &is) != 0) {
    return problem(out, "temporary folder", folder + " cannot be written",
                   "set TMPDIR to a folder that you may write to");
  }
  const uint64_t free_bytes = uint64_t{is.f_bavail} * is.f_frsize;
  if (free_bytes < (1ull << 30)) {
    return note(out, "temporary folder",
                fmt::format("{} has only {} MiB free", folder, free_bytes >> 20),
                "a long run's record may not fit: set TMPDIR, or use --record");
  }
  good(out, "temporary folder", fmt::format("{}, {} GiB free", folder, free_bytes >> 30));
}

int doctor(bool json) {
  const auto paths = find_install_paths();
  if (!paths) return say(paths.error()), kExitFailure;
  Findings findings;
  check_virtual_driver(findings, *paths);
  check_python(findings, *paths);
  check_tmp(findings);
  check_real_driver(findings, *paths);
  size_t problems = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& finding : findings) {
    static constexpr const char* kMarks[] = {"ok     ", "note   ", "problem"};
    static constexpr const char* kNames[] = {"ok", "note", "problem"};
    const auto state = static_cast<size_t>(finding.state);
    problems += finding.state == Finding::State::kProblem;
    if (json) {
      list.push_back(
          {{"state", kNames[state]},
           {"subject", finding.subject},
           {"text", finding.text},
           {"hint", finding.hint.empty() ? nlohmann::json() : nlohmann::json(finding.hint)}});
    } else {
      fmt::print("{}  {}: {}\n", kMarks[state], finding.subject, finding.text);
      if (!finding.hint.empty()) fmt::print("         {}\n", finding.hint);
    }
  }
  if (json) {
    const nlohmann::json all = {{"schema", 1}, {"problems", problems}, {"findings", list}};
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return problems == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  struct Options {
    bool json = false, probe_driver = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check this machine's set-up: exit 1 if something is wrong");
  command->footer("\nExamples:\n  tonnage doctor\n  tonnage doctor --json");
  command->add_flag("--json", options->json, "As JSON");
  command->add_flag("--probe-driver", options->probe_driver)->group("");
  command->callback([options, &exit_code] {
    exit_code = options->probe_driver ? probe_driver() : doctor(options->json);
  });
}

}  // namespace tonnage::cli
