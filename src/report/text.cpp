#include "report/text.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>

#include "report/headline.h"
#include "report/need_text.h"
#include "report/style.h"
#include "report/text_chart.h"

namespace tonnage::report {
namespace {

bool context_is_modelled(const analysis::Peak& peak) {
  return std::ranges::any_of(peak.breakdown.rows, [](const auto& row) {
    return row.category == analysis::Category::kContext && row.modelled;
  });
}

using analysis::Breakdown;
using analysis::BreakdownRow;
using analysis::DeviceReport;
using analysis::OutOfMemory;
using analysis::Peak;
using analysis::Report;
using analysis::Verdict;

constexpr int kNameCells = 18;
constexpr int kBytesCells = 10;
constexpr size_t kMostProcessRows = 32;

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string plural(uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string card(const DeviceReport& device) {
  return device.name.empty() ? fmt::format("GPU {}", device.index) : device.name;
}

Color verdict_color(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
    case Verdict::kFitsAtMost: return Color::kGreen;
    case Verdict::kDoesNotFit:
    case Verdict::kFailed: return Color::kRed;
    case Verdict::kCut: return Color::kYellow;
    case Verdict::kNothingUsed:
    case Verdict::kUnknown: break;
  }
  return Color::kBold;
}

class Writer {
 public:
  Writer(const Report& report, const TextOptions& options) : report_(report), style_(options) {}

  std::string run_brief(const std::vector<std::string>& below_headline) {
    write_top(below_headline);
    return std::move(out_);
  }

  std::string run(const std::vector<std::string>& below_headline) {
    write_top(below_headline);
    write_need();
    std::vector<const DeviceReport*> used;
    for (const DeviceReport& device : report_.devices) {
      if (device.device || device.reserved || !device.out_of_memory.empty())
        used.push_back(&device);
    }
    if (used.size() > 2) {
      // With many devices: a table of all, and the details of the one that decides.
      write_device_table(used);
      used = {leading_device(report_)};
    }
    for (const DeviceReport* device : used) write_device(*device);
    write_processes();
    write_doubts();
    return std::move(out_);
  }

 private:
  void write_top(const std::vector<std::string>& below_headline) {
    wrap(headline(report_, style_), verdict_color(report_.verdict));
    for (const std::string& sentence : below_headline) wrap(style_.safe(sentence), Color::kNone, 2);
  }

  void line(std::string_view text = "") {
    while (text.ends_with(' ')) text.remove_suffix(1);
    out_ += text;
    out_ += '\n';
  }

  // Breaks at spaces, so that no word is cut; continuation lines are indented.
  void wrap(const std::string& text, Color color = Color::kNone, int indent = 0,
            std::string_view first = "") {
    std::string current(first);
    int used = columns(current);
    const std::string margin(indent, ' ');
    size_t at = 0;
    bool fresh = true;
    std::string words;
    auto flush = [&] {
      line(current + style_.paint(words, color));
      current = margin;
      used = indent;
      words.clear();
      fresh = true;
    };
    while (at < text.size()) {
      size_t end = text.find(' ', at);
      if (end == std::string::npos) end = text.size();
      const std::string word = text.substr(at, end - at);
      if (!fresh && used + 1 + columns(word) > style_.width()) flush();
      if (!fresh) {
        words += ' ';
        ++used;
      }
      words += word;
      used += columns(word);
      fresh = false;
      at = end + 1;
    }
    flush();
  }

  void title(std::string_view text) {
    line();
    line(style_.paint(text, Color::kBold));
  }

  void write_device_table(const std::vector<const DeviceReport*>& devices) {
    line();
    line(style_.paint("  GPU  " + style_.left("card", 22) + style_.right("allocated", 12) +
                          style_.right("reserved", 12) + style_.right("device", 12) + "  verdict",
                      Color::kDim));
    auto peak = [](const std::optional<Peak>& value) {
      return value ? format_bytes(value->bytes) : std::string();
    };
    for (const DeviceReport* device : devices) {
      const bool full = device->verdict == Verdict::kDoesNotFit;
      line("  " + style_.right(fmt::format("{}", device->index), 3) + "  " +
           style_.left(card(*device), 22) + style_.right(peak(device->allocated), 12) +
           style_.right(peak(device->reserved), 12) + style_.right(peak(device->device), 12) +
           style_.paint("  " + device_verdict_text(*device), full ? Color::kRed : Color::kNone));
    }
  }

  void write_device(const DeviceReport& device) {
    line();
    std::string head = fmt::format("GPU {}", device.index);
    if (!device.name.empty()) head += "  " + style_.safe(device.name);
    if (device.total_bytes) head += std::string(style_.dot()) + format_bytes(*device.total_bytes);
    if (const std::string verdict = device_verdict_text(device);
        report_.devices.size() > 1 && !verdict.empty())
      head += std::string(style_.dot()) + verdict;
    line(style_.paint(head, Color::kBold));
    if (device.allocated) write_peak("allocated peak", *device.allocated);
    if (device.reserved) write_peak("reserved peak", *device.reserved);
    if (device.device) {
      write_peak("device peak", *device.device);
      if (device.context_bytes > 0)
        line(fmt::format("  {}  {} of it context and machine code ({})",
                         std::string(kNameCells - 4, ' '),
                         style_.right(format_bytes(device.context_bytes), kBytesCells),
                         context_is_modelled(*device.device) ? "modelled" : "measured"));
    }
    write_counts_of_pytorch(device);
    write_out_of_memory(device);
    write_breakdown(device);
    write_beside_pytorch(device);
    if (const std::string chart = draw_chart(device, style_); !chart.empty()) {
      title("  Over time");
      out_ += chart;
    }
    write_largest(device);
    write_steps(device);
    write_counters(device);
  }

  void write_peak(std::string_view name, const Peak& peak) {
    std::string text = when_text(peak.moment);
    if (const std::string site = style_.site(peak.moment.site); !site.empty())
      text += (text.empty() ? "" : "  ") + site;
    line("  " + style_.left(name, kNameCells - 4) + "  " +
         style_.paint(style_.right(format_bytes(peak.bytes), kBytesCells), Color::kBold) + "  " +
         style_.fit(text, style_.width() - kNameCells - kBytesCells - 2));
  }

  // Of an allocator that does not tell of its tensors (cudaMallocAsync).
  void write_counts_of_pytorch(const DeviceReport& device) {
    if (device.uses_pytorch) return;
    uint64_t allocated = 0, reserved = 0;
    for (const analysis::CounterCheck& check : device.counters) {
      if (check.name == "allocated_bytes.all.peak") allocated += check.theirs;
      if (check.name == "reserved_bytes.all.peak") reserved += check.theirs;
    }
    if (reserved > 0)
      line(fmt::format("  PyTorch itself counted {} allocated and {} reserved at most",
                       format_bytes(allocated), format_bytes(reserved)));
  }

  void write_out_of_memory(const DeviceReport& device) {
    if (!device.out_of_memory.empty()) {
      title("  Refused requests");
      const size_t shown = std::min<size_t>(device.out_of_memory.size(), 3);
      for (size_t i = device.out_of_memory.size() - shown; i < device.out_of_memory.size(); ++i)
        write_refusal(device, device.out_of_memory[i]);
      if (device.out_of_memory.size() > shown)
        line(fmt::format("    and {} before", device.out_of_memory.size() - shown));
    }
    if (device.retries > 0)
      line(fmt::format("    {} a request was refused, and granted after memory was freed",
                       plural(device.retries, "time", "times")));
    if (device.other_ways > 0)
      line(fmt::format("    {} a library was refused a workspace and went on with less",
                       plural(device.other_ways, "time", "times")));
  }

  void write_refusal(const DeviceReport& device, const OutOfMemory& oom) {
    wrap(refusal_sentence(oom, style_), oom.ended ? Color::kRed : Color::kNone, 4, "    ");
    std::string state;
    if (device.uses_pytorch)
      state = fmt::format("then allocated {}, reserved {}; ", format_bytes(oom.allocated_bytes),
                          format_bytes(oom.reserved_bytes));
    state += oom.ended ? "this ended the command" : "the command went on";
    wrap(state, Color::kNone, 6, "      ");
  }

  void write_need() {
    const std::vector<std::string> lines = need_lines(report_);
    if (lines.empty()) return;
    title("What it needs");
    for (const std::string& text : lines) {
      const bool remedy = text.starts_with("+ ") || text.starts_with("- ");
      if (remedy) {
        wrap(style_.safe(text.substr(2)), text[0] == '+' ? Color::kGreen : Color::kNone, 4,
             "  " + text.substr(0, 2));
      } else {
        wrap(style_.safe(text), Color::kNone, 2, "  ");
      }
    }
  }

  void write_breakdown(const DeviceReport& device) {
    const Peak* main = device.device     ? &*device.device
                       : device.reserved ? &*device.reserved
                                         : nullptr;
    if (main == nullptr) return;
    // Where the peak of allocated is at another moment, it has a column of its own.
    const Peak* other = device.allocated && device.allocated->moment.event != main->moment.event
                            ? &*device.allocated
                            : nullptr;
    const Breakdown& now = main->breakdown;
    title(fmt::format("  Where the memory is, at the {} peak",
                      device.device ? "device" : "reserved"));
    if (other != nullptr)
      line(style_.paint(
          std::string(static_cast<size_t>(style_.width() - 18), ' ') + "  at the allocated",
          Color::kDim));
    const int side = other != nullptr ? 18 : 0;
    const int cells =
        std::max(10, style_.width() - 4 - kNameCells - kBytesCells - 9 - 2 - side - 11);
    uint64_t largest = 1;
    for (const BreakdownRow& row : now.rows) largest = std::max(largest, row.bytes);
    bool inferred = false;
    auto bytes_in = [](const Breakdown& breakdown,
                       analysis::Category category) -> const BreakdownRow* {
      for (const BreakdownRow& row : breakdown.rows) {
        if (row.category == category) return &row;
      }
      return nullptr;
    };
    for (const abi::CategoryInfo& info : abi::kCategories) {
      const analysis::Category category = info.category;
      const BreakdownRow* row = bytes_in(now, category);
      const BreakdownRow* second =
          other != nullptr ? bytes_in(other->breakdown, category) : nullptr;
      if (row == nullptr && second == nullptr) continue;
      const uint64_t bytes = row != nullptr ? row->bytes : 0;
      std::string note;
      if (row != nullptr && row->modelled) note = " modelled";
      if (row != nullptr && row->inferred_bytes * 2 > row->bytes) {
        note = style_.unicode() ? " ≈" : " ~";
        inferred = true;
      }
      const std::string bar =
          style_.bar(static_cast<double>(bytes) / static_cast<double>(largest), cells);
      std::string text = "    " + style_.left(title_of(device, category), kNameCells) +
                         style_.right(format_bytes(bytes), kBytesCells) +
                         style_.right(percent(bytes, now.total_bytes), 9) + "  ";
      text += style_.paint(bar, category_color(category)) + note;
      if (second != nullptr || other != nullptr) {
        text.append(std::max(1, cells + 11 - columns(bar) - columns(note)), ' ');
        text += style_.right(format_bytes(second != nullptr ? second->bytes : 0), 16);
      }
      line(text);
    }
    std::string total = "    " + style_.left("total", kNameCells) +
                        style_.right(format_bytes(now.total_bytes), kBytesCells) +
                        style_.right(now.total_is_device ? "" : "reserved", 11);
    if (other != nullptr) {
      total.append(std::max(1, cells + 11 - 2 + 2), ' ');
      total = style_.left(total, style_.width() - 16) +
              style_.right(format_bytes(other->breakdown.total_bytes), 16);
    }
    line(style_.paint(total, Color::kBold));
    write_kinds(device);
    if (inferred)
      line(style_.paint(fmt::format("    {} inferred from when tensors were made and freed",
                                    style_.unicode() ? "≈" : "~"),
                        Color::kDim));
    if (now.pending_bytes > 0)
      line(style_.paint(fmt::format("    {} of the cached memory waits for another stream",
                                    format_bytes(now.pending_bytes)),
                        Color::kDim));
  }

  // Without PyTorch there is nothing to tell apart from PyTorch's memory.
  static const char* title_of(const DeviceReport& device, analysis::Category category) {
    return category == analysis::Category::kOther && !device.uses_pytorch
               ? "allocations"
               : category_title(category);
  }

  void write_kinds(const DeviceReport& device) {
    if (device.uses_pytorch || device.device_bytes_by_kind.size() < 2) return;
    std::string kinds;
    for (const auto& [kind, bytes] : device.device_bytes_by_kind)
      kinds +=
          fmt::format("{}{} {}", kinds.empty() ? "" : ", ", style_.safe(kind), format_bytes(bytes));
    wrap("by kind: " + kinds, Color::kDim, 4, "    ");
  }

  void write_largest(const DeviceReport& device) {
    if (device.largest.empty()) return;
    title(device.uses_pytorch ? "  Largest tensors at the allocated peak"
                              : "  Largest allocations at the device peak");
    for (const analysis::LiveGroup& group : device.largest)
      write_group(group, group.kind.empty() || device.uses_pytorch ? category_title(group.category)
                                                                   : style_.safe(group.kind));
  }

  void write_group(const analysis::LiveGroup& group, const std::string& kind) {
    const std::string size = group.count > 1 ? fmt::format("{} {} {}", group.count, style_.times(),
                                                           format_bytes(group.size_bytes))
                                             : format_bytes(group.size_bytes);
    std::string where = style_.site(group.site);
    if (!group.name.empty()) {  // a long name takes no line's place
      const analysis::Site& site = group.site;
      where = style_.place(site.user_line.known() ? site.user_line : site.line, false);
      where += (where.empty() ? "" : "  ") + style_.safe(group.name);
      if (!site.op.empty()) where.append(style_.dot()).append(style_.safe(site.op));
    }
    line("    " + style_.right(size, 17) + "  " +
         style_.paint(style_.left(kind, 15), category_color(group.category)) + "  " +
         style_.fit(where, style_.width() - 4 - 17 - 2 - 15 - 2));
  }

  // Whose the rows are that no tensor explains.
  void write_beside_pytorch(const DeviceReport& device) {
    std::vector<const analysis::LiveGroup*> shown;
    for (const analysis::LiveGroup& group : device.beside_pytorch) {
      // Without PyTorch the list of allocations has the managed ones.
      if (device.uses_pytorch || group.category == analysis::Category::kLocalMemory)
        shown.push_back(&group);
    }
    if (shown.empty()) return;
    title("  Local memory of kernels, and managed memory, at the device peak");
    for (const analysis::LiveGroup* group : shown)
      write_group(*group, category_title(group->category));
  }

  void write_steps(const DeviceReport& device) {
    if (device.steps.empty()) return;
    const auto& steps = device.steps;
    size_t peak = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].peak_allocated > steps[peak].peak_allocated) peak = i;
    }
    title("  Peak per step");
    const bool with_device = steps[0].peak_device.has_value();
    const bool with_launches = std::any_of(steps.begin(), steps.end(),
                                           [](const auto& s) { return s.launches.has_value(); });
    std::string head = "    " + style_.right("step", 6) + style_.right("allocated", 13) +
                       style_.right("reserved", 13);
    if (with_device) head += style_.right("device", 13);
    head += style_.right("kept after", 13);
    if (with_launches) head += style_.right("launches", 11);
    line(style_.paint(head, Color::kDim));
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool shown = steps.size() <= 8 || i < 3 || i + 3 >= steps.size() || i == peak;
      if (!shown) continue;
      if (last != SIZE_MAX && i != last + 1) line("    " + style_.right(style_.ellipsis(), 6));
      last = i;
      const analysis::StepRow& step = steps[i];
      std::string text = "    " +
                         style_.right(step.complete ? fmt::format("{}", step.number) : "after", 6) +
                         style_.right(format_bytes(step.peak_allocated), 13) +
                         style_.right(format_bytes(step.peak_reserved), 13);
      if (with_device)
        text += style_.right(step.peak_device ? format_bytes(*step.peak_device) : "", 13);
      text += style_.right(format_bytes(step.allocated_after), 13);
      if (with_launches)
        text += style_.right(step.launches ? fmt::format("{}", *step.launches) : "", 11);
      if (i == peak && steps.size() > 1) text += style_.paint("  peak", Color::kBold);
      line(text);
    }
  }

  void write_counters(const DeviceReport& device) {
    for (const analysis::CounterCheck& check : device.counters) {
      if (check.equal()) continue;
      std::string text = fmt::format(
          "PyTorch counted {} = {} B, Tonnage {} B: a difference of {} B", style_.safe(check.name),
          check.theirs, *check.ours, static_cast<int64_t>(check.theirs - *check.ours));
      if (check.name.ends_with(".peak") && check.theirs < *check.ours)
        text += " (a program that resets its peak counters sees less)";
      wrap(text, Color::kYellow, 4, "  ! ");
    }
  }

  void write_processes() {
    constexpr uint64_t kWorthSaying = 1 << 20;
    std::string text;
    auto add = [&](const std::string& part) {
      text += (text.empty() ? "" : std::string(style_.dot())) + part;
    };
    if (report_.processes.size() > 1) add(plural(report_.processes.size(), "process", "processes"));
    if (report_.launches) add(plural(*report_.launches, "kernel launch", "kernel launches"));
    if (report_.host_pinned_peak_bytes >= kWorthSaying)
      add(format_bytes(report_.host_pinned_peak_bytes) + " pinned host memory at most");
    if (!report_.torch_version.empty()) add("PyTorch " + style_.safe(report_.torch_version));
    if (!report_.alloc_conf.empty()) add(style_.safe(report_.alloc_conf));
    if (text.empty()) return;
    line();
    wrap(text, Color::kDim);
    write_process_table();
  }

  // A row for each process and device that it had memory on.
  void write_process_table() {
    struct Row {
      const analysis::ProcessReport* process;
      int device;
      uint64_t bytes;
    };
    std::vector<Row> rows;
    for (const analysis::ProcessReport& process : report_.processes) {
      for (const auto& [device, bytes] : process.peak_device)
        rows.push_back({&process, device, bytes});
    }
    if (rows.size() < 2) return;
    title("Processes");
    line(style_.paint("  " + style_.right("process", 8) + style_.right("GPU", 5) +
                          style_.right("on the device", 15) + style_.right("allocated", 12) +
                          style_.right("reserved", 12) + "  command",
                      Color::kDim));
    const size_t shown = std::min<size_t>(rows.size(), kMostProcessRows);
    for (size_t i = 0; i < shown; ++i) {
      const Row& row = rows[i];
      const auto of = [&](const std::map<int, uint64_t>& peaks) {
        const auto found = peaks.find(row.device);
        return found != peaks.end() ? format_bytes(found->second) : std::string();
      };
      line("  " + style_.right(fmt::format("{}", row.process->pid), 8) +
           style_.right(fmt::format("{}", row.device), 5) +
           style_.right(format_bytes(row.bytes), 15) +
           style_.right(of(row.process->peak_allocated), 12) +
           style_.right(of(row.process->peak_reserved), 12) + "  " +
           style_.fit(row.process->command, style_.width() - 58, true));
    }
    if (rows.size() > shown)
      line(fmt::format("  and {} more (all are in --json)", rows.size() - shown));
  }

  // What makes the figures doubtful, if anything does.
  void write_doubts() {
    std::vector<std::string> doubts;
    if (report_.history_truncated)
      doubts.push_back(
          "the beginning of the history was overwritten: peaks before its first event are not "
          "known");
    for (const analysis::ProcessReport& process : report_.processes) {
      if (!process.ended && !report_.from_snapshot)
        doubts.push_back(fmt::format(
            "process {} ({}) did not end normally: its record stops at its last whole chunk",
            process.pid, style_.safe(process.command)));
    }
    if (report_.inconsistencies > 0)
      doubts.push_back(fmt::format(
          "{} of PyTorch's allocator events contradict its rules: some may have been lost",
          report_.inconsistencies));
    for (const analysis::Message& message : report_.messages) {
      doubts.push_back(style_.safe(message.text) +
                       (message.count > 1 ? fmt::format(" ({} times)", message.count) : ""));
    }
    if (!report_.stub_calls.empty()) {
      std::string names;
      for (const std::string& name : report_.stub_calls)
        names += (names.empty() ? "" : ", ") + style_.safe(name);
      doubts.push_back(
          "driver functions without an implementation were called and may hide memory: " + names);
    }
    if (!doubts.empty()) {
      title("Notes");
      for (const std::string& doubt : doubts)
        wrap(doubt, Color::kYellow, 4, style_.unicode() ? "  • " : "  - ");
    }
    write_lines("Reads of unknown values (a single number reads as about 1, others as zeros)",
                report_.unknown_reads, false);
    write_lines("Sizes that were assumed", report_.assumed_sizes, true);
  }

  void write_lines(std::string_view heading, const std::vector<analysis::LineCount>& lines,
                   bool sizes) {
    if (lines.empty()) return;
    title(heading);
    const size_t shown = std::min<size_t>(lines.size(), 5);
    for (size_t i = 0; i < shown; ++i) {
      const analysis::LineCount& count = lines[i];
      std::string text = style_.site(count.site);
      if (!count.name.empty() && count.name != count.site.op)
        text += (text.empty() ? "" : std::string(style_.dot())) + style_.safe(count.name);
      if (text.empty()) text = "no line known";
      if (sizes) text += fmt::format(": {} taken", count.taken);
      line("    " + style_.right(fmt::format("{} {}", count.count, style_.times()), 9) + "  " +
           style_.fit(text, style_.width() - 15));
    }
    if (lines.size() > shown)
      line(fmt::format("    and {} more lines (all are in --json)", lines.size() - shown));
  }

  const Report& report_;
  Style style_;
  std::string out_;
};

}  // namespace

TextOptions text_options_for(int fd) {
  TextOptions options;
  const bool terminal = isatty(fd) != 0;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  options.color = terminal && (no_color == nullptr || *no_color == '\0') &&
                  (term == nullptr || std::strcmp(term, "dumb") != 0);
  winsize size{};
  if (terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  if (const char* text = std::getenv("COLUMNS"); text != nullptr && std::atoi(text) > 0)
    options.width = std::atoi(text);
  options.width = std::clamp(options.width, 80, 400);
  // The locale that the environment asks for, without changing the program's own.
  if (locale_t locale = newlocale(LC_CTYPE_MASK, "", nullptr); locale != nullptr) {
    options.unicode = std::strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
  }
  return options;
}

std::string render_brief(const analysis::Report& report, const TextOptions& options,
                         const std::vector<std::string>& below_headline) {
  return Writer(report, options).run_brief(below_headline);
}

std::string headline(const analysis::Report& report) {
  return headline(report, Style(TextOptions{80, false, true}));
}

std::string render_text(const analysis::Report& report, const TextOptions& options,
                        const std::vector<std::string>& below_headline) {
  return Writer(report, options).run(below_headline);
}

}  // namespace tonnage::report
