#include "cli/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tonnage::cli {
namespace {

// Text as roff takes it literally. Minus signs stay minus signs: people copy them.
std::string roff(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == 0 && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == '\'') {
      out += "\\(aq";
    } else {
      out += c;
    }
  }
  return out;
}

std::string head(const std::string& title, const std::string& date) {
  std::string upper = title;
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return ".\\\" Made by `tonnage man`.\n" +
         fmt::format(".TH {} 1 {} \"Tonnage {}\" \"User Commands\"\n", roff(upper), date,
                     TONNAGE_VERSION);
}

constexpr size_t kLineBytes = 78;

// A line of input, broken at blanks: mandoc asks for short ones. None begins like a request.
std::string broken(const std::string& line) {
  std::string out, now;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (!now.empty() && now.size() + 1 + word.size() > kLineBytes) {
      out += now + "\n";
      now.clear();
    }
    now += (now.empty() ? "" : " ") + word;
    if (now.starts_with('.') || now.starts_with('\'')) now.insert(0, "\\&");
  }
  return out + now + "\n";
}

// Lines of the help flow together; a new paragraph begins at "Environment:" and the like. A
// sentence ends its line, so that the space behind it is the formatter's.
std::string prose(const std::vector<std::string>& lines) {
  std::string out, paragraph;
  const auto end_paragraph = [&] {
    if (paragraph.empty()) return;
    if (!out.empty()) out += ".PP\n";
    size_t from = 0;
    for (size_t at; (at = paragraph.find(". ", from)) != std::string::npos; from = at + 2)
      out += broken(roff(paragraph.substr(from, at + 1 - from)));
    out += broken(roff(paragraph.substr(from)));
    paragraph.clear();
  };
  for (const std::string& line : lines) {
    const std::string first = line.substr(0, line.find(' '));
    if (first.ends_with(':') || line.starts_with("Exit code") || line.starts_with("A command") ||
        line.starts_with("The last"))
      end_paragraph();
    paragraph += (paragraph.empty() ? "" : " ") + line;
  }
  end_paragraph();
  return out;
}

std::string examples(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = ".SH EXAMPLES\n.nf\n";
  for (const std::string& line : lines) out += roff(line) + "\n";
  return out + ".fi\n";
}

std::string option_tag(const OptionRow& option, bool positional) {
  std::string out;
  for (const std::string& name : option.names) {
    out += out.empty() ? "" : ", ";
    out += positional ? "\\fI" + roff(name) + "\\fR" : "\\fB" + roff(name) + "\\fR";
  }
  if (!positional && !option.value.empty()) out += " \\fI" + roff(option.value) + "\\fR";
  return out;
}

std::string options(const std::vector<OptionRow>& rows, const char* title, bool positional) {
  std::string out;
  for (const OptionRow& option : rows) {
    std::string about = option.about;
    if (option.takes == Takes::kWords) about += fmt::format(" ({})", fmt::join(option.words, ", "));
    out += ".TP\n" + option_tag(option, positional) + "\n" +
           (about.empty() ? "\\&" : prose({about + "."}));
  }
  return out.empty() ? "" : fmt::format(".SH {}\n", title) + out;
}

std::string synopsis(const CommandRow& command) {
  std::string out = fmt::format(".B tonnage {}\n.RI [ options ]", roff(command.name));
  std::string arguments;
  for (const OptionRow& argument : command.arguments) {
    const std::string name = roff(argument.names.front());
    arguments += fmt::format("{}{}\\fI{}\\fR{}{}", arguments.empty() ? "" : " ",
                             argument.required ? "" : "[", name, argument.many ? "..." : "",
                             argument.required ? "" : "]");
  }
  if (command.runs_command) arguments = "\\-\\- \\fIcommand\\fR [\\fIargument\\fR...]";
  return out + "\n" + (arguments.empty() ? "" : arguments + "\n");
}

}  // namespace

std::string man_page(const std::vector<CommandRow>& commands, const std::string& about,
                     const std::string& notes, const std::string& date) {
  std::string out = head("tonnage", date);
  out += ".SH NAME\ntonnage \\- what GPU memory a training needs, without a GPU\n";
  out += ".SH SYNOPSIS\n.B tonnage\n.I command\n.RI [ options ]\n";
  out += ".SH DESCRIPTION\n" + prose({about});
  out += ".SH COMMANDS\n";
  for (const CommandRow& command : commands)
    out += fmt::format(".TP\n.BR tonnage\\-{} (1)\n", roff(command.name)) +
           prose({command.about + "."});
  CommandRow end;
  std::istringstream lines(notes);
  bool in_examples = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    in_examples = line == "Examples:" || (in_examples && line.starts_with("  "));
    if (line == "Examples:") continue;
    (in_examples ? end.examples : end.notes).push_back(in_examples ? line.substr(2) : line);
  }
  out += ".SH EXIT STATUS\n" + prose(end.notes) + examples(end.examples);
  out +=
      ".SH FILES\n.TP\n.I $XDG_STATE_HOME/tonnage/runs, \\(ti/.local/state/tonnage/runs\n"
      "The last runs, for\n.B tonnage explain\nwithout a file.\n"
      ".TP\n.I $XDG_CACHE_HOME/tonnage, \\(ti/.cache/tonnage\n"
      "What was compiled for the PyTorch builds of this user.\n";
  std::string others;
  for (const CommandRow& command : commands)
    others +=
        fmt::format("{}.BR tonnage\\-{} (1)", others.empty() ? "" : ",\n", roff(command.name));
  return out + ".SH SEE ALSO\n" + others + "\n";
}

std::string man_page_of(const CommandRow& command, const std::string& date) {
  std::string out = head("tonnage-" + command.name, date);
  out += ".SH NAME\n" +
         broken(fmt::format("tonnage\\-{} \\- {}", roff(command.name), roff(command.about)));
  out += ".SH SYNOPSIS\n" + synopsis(command);
  out += ".SH DESCRIPTION\n" + prose({command.about + "."});
  if (!command.notes.empty()) out += ".PP\n" + prose(command.notes);
  out += options(command.arguments, "ARGUMENTS", true);
  out += options(command.options, "OPTIONS", false);
  out += examples(command.examples);
  return out + ".SH SEE ALSO\n.BR tonnage (1)\n";
}

}  // namespace tonnage::cli
