#include "cli/completion.h"

#include <fmt/format.h>

#include "cli/output.h"

namespace tonnage::cli {
namespace {

// As one word of any of these shells: fish has other rules within quotes, but none for what may
// stand in names and descriptions here once a backslash is doubled.
std::string in_quotes(const std::string& text, bool fish = false) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += fish ? "\\'" : "'\\''";
    } else if (c == '\\' && fish) {
      out += "\\\\";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string list_in_quotes(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + in_quotes(word);
  return out;
}

std::string options_of(const CommandRow& command) {
  std::vector<std::string> names;
  for (const OptionRow& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return list_in_quotes(names, " ");
}

// --- bash ---

std::string bash_value(const OptionRow& option) {
  switch (option.takes) {
    case Takes::kFile: return "_tonnage_files";
    case Takes::kGpu: return "_tonnage_reply \"${_tonnage_gpus[@]}\"";
    case Takes::kWords: return "_tonnage_reply " + list_in_quotes(option.words, " ");
    default: return ":";
  }
}

constexpr const char* kBashHelpers = R"bash(
# The candidates that begin as the word does, whatever its case and quotes. A blank is quoted.
_tonnage_reply() {
  local begun=${_tonnage_word#[\"\']} candidate
  begun=${begun//\\/}
  for candidate; do
    [[ ${candidate,,} == "${begun,,}"* ]] || continue
    if [[ $_tonnage_word == [\"\']* ]]; then
      COMPREPLY+=("$candidate")
    else
      COMPREPLY+=("$(printf '%q' "$candidate")")
    fi
  done
}

_tonnage_files() {
  local file
  compopt -o filenames 2> /dev/null
  while IFS= read -r file; do
    COMPREPLY+=("$file")
  done < <(compgen -f -- "${_tonnage_word#[\"\']}")
}

# What follows `tonnage run [options]` is another command's line.
_tonnage_other_command() {
  local first=$1 name
  if ((COMP_CWORD > first)); then
    if declare -F _command_offset > /dev/null; then
      _command_offset "$first"
    else
      _tonnage_files
    fi
    return
  fi
  while IFS= read -r name; do
    COMPREPLY+=("$name")
  done < <(compgen -c -- "$_tonnage_word" | sort -u)
  _tonnage_files
}
)bash";

constexpr const char* kBashMain = R"bash(
_tonnage() {
  local _tonnage_word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} option= word i=2
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    _tonnage_reply "${_tonnage_commands[@]}" --help --version
    return
  fi
  # The option whose value the word is. --gpu=NAME is three words, as = parts them.
  while ((i < COMP_CWORD)); do
    word=${COMP_WORDS[i]}
    if [[ $command == run && ($word == -- || $word != -*) ]]; then
      [[ $word == -- ]] && ((i++))
      _tonnage_other_command "$i"
      return
    fi
    ((i++))
    if _tonnage_takes_value "$command" "$word"; then
      [[ ${COMP_WORDS[i]} == = ]] && ((i++))
      ((i >= COMP_CWORD)) && option=$word
      ((i++))
    fi
  done
  [[ $_tonnage_word == = ]] && _tonnage_word=
  if [[ -n $option ]]; then
    _tonnage_value "$command" "$option"
  elif [[ $_tonnage_word == -* ]]; then
    _tonnage_options "$command"
  else
    _tonnage_argument "$command"
  fi
}
complete -F _tonnage tonnage
)bash";

// --- zsh ---

std::string zsh_text(const std::string& text) {  // within an _arguments specification
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const OptionRow& option) {
  switch (option.takes) {
    case Takes::kFile: return "_files";
    case Takes::kGpu: return "_tonnage_gpus";
    case Takes::kWords: return "(" + fmt::format("{}", fmt::join(option.words, " ")) + ")";
    default: return " ";
  }
}

std::string zsh_option(const OptionRow& option) {
  std::string out;
  const std::string others = fmt::format("({})", fmt::join(option.names, " "));
  for (const std::string& name : option.names) {
    std::string spec = option.names.size() > 1 ? others : "";
    spec += name;
    if (option.takes != Takes::kNothing && name.starts_with("--")) spec += "=";
    spec += "[" + zsh_text(option.about) + "]";
    if (option.takes != Takes::kNothing)
      spec += ":" + zsh_text(option.value) + ":" + zsh_action(option);
    out += " \\\n        " + in_quotes(spec);
  }
  return out;
}

std::string zsh_command(const CommandRow& command) {
  std::string out = fmt::format("      {})\n      _arguments -S", command.name);
  for (const OptionRow& option : command.options) out += zsh_option(option);
  for (const OptionRow& argument : command.arguments)
    out += " \\\n        " +
           in_quotes(fmt::format("{}:{}:{}",
                                 argument.many       ? "*"
                                 : argument.required ? ""
                                                     : ":",
                                 zsh_text(argument.names.front()), zsh_action(argument)));
  if (command.runs_command) out += " \\\n        '*::command:_normal'";
  return out + "\n      ;;\n";
}

// --- fish ---

std::string fish_option(const OptionRow& option) {
  std::string out;
  for (const std::string& name : option.names)
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  switch (option.takes) {
    case Takes::kNothing: break;
    case Takes::kFile: out += " -r -F"; break;
    case Takes::kGpu: out += " -x -a '(__tonnage_gpus)'"; break;
    case Takes::kWords: out += fmt::format(" -x -a '{}'", fmt::join(option.words, " ")); break;
    case Takes::kText: out += " -x"; break;
  }
  return out + " -d " + in_quotes(option.about, true);
}

}  // namespace

std::string bash_completion(const std::vector<CommandRow>& commands,
                            const std::vector<std::string>& gpus) {
  std::string names, options, values, takes, arguments;
  for (const CommandRow& command : commands) {
    names += " " + command.name;
    options += fmt::format("    {}) _tonnage_reply {} ;;\n", command.name, options_of(command));
    for (const OptionRow& option : command.options) {
      if (option.takes == Takes::kNothing) continue;
      std::string pattern;
      for (const std::string& name : option.names)
        pattern += fmt::format("{}'{} {}'", pattern.empty() ? "" : "|", command.name, name);
      values += fmt::format("    {}) {} ;;\n", pattern, bash_value(option));
      takes += (takes.empty() ? "" : "|") + pattern;
    }
    std::string argument;
    if (command.runs_command) {
      argument = "_tonnage_other_command \"$COMP_CWORD\"";
    } else if (!command.arguments.empty()) {
      argument = bash_value(command.arguments.front());
    }
    if (!argument.empty()) arguments += fmt::format("    {}) {} ;;\n", command.name, argument);
  }
  std::string out = "# bash completion for tonnage, made by `tonnage completion bash`.\n\n";
  out += fmt::format("_tonnage_commands=({})\n", names.substr(1));
  out += "_tonnage_gpus=(" + list_in_quotes(gpus, "\n  ") + ")\n";
  out += kBashHelpers;
  out += "\n_tonnage_options() {\n  case $1 in\n" + options + "  esac\n}\n";
  out += "\n_tonnage_takes_value() {\n  case \"$1 $2\" in\n    " + takes +
         ") return 0 ;;\n  esac\n  return 1\n}\n";
  out += "\n_tonnage_value() {\n  case \"$1 $2\" in\n" + values + "  esac\n}\n";
  out += "\n_tonnage_argument() {\n  case $1 in\n" + arguments + "  esac\n}\n";
  return out + kBashMain;
}

std::string zsh_completion(const std::vector<CommandRow>& commands,
                           const std::vector<std::string>& gpus) {
  std::string names, cases;
  for (const CommandRow& command : commands) {
    names += "\n    " + in_quotes(command.name + ":" + command.about);
    cases += zsh_command(command);
  }
  std::string out = "#compdef tonnage\n# Made by `tonnage completion zsh`.\n\n";
  out += "_tonnage_gpus() {\n  local -a gpus\n  gpus=(" + list_in_quotes(gpus, "\n    ") +
         ")\n  compadd -M 'm:{a-zA-Z}={A-Za-z}' -a gpus\n}\n";
  out +=
      "\n_tonnage() {\n  local curcontext=\"$curcontext\" state line\n"
      "  local -a commands\n  typeset -A opt_args\n  commands=(" +
      names + "\n  )\n";
  out +=
      "  _arguments -C '(- *)--help[Print the help]' '(- *)--version[Print the version]' \\\n"
      "    '1:command:->command' '*::argument:->argument'\n";
  out +=
      "  case $state in\n    command) _describe -t commands command commands ;;\n"
      "    argument)\n    case $words[1] in\n" +
      cases + "    esac\n    ;;\n  esac\n}\n\n";
  // Whether it lies in $fpath (the first call is inside of it) or is read by `source`.
  return out +
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n  _tonnage \"$@\"\nelse\n"
         "  compdef _tonnage tonnage\nfi\n";
}

std::string fish_completion(const std::vector<CommandRow>& commands,
                            const std::vector<std::string>& gpus) {
  std::string out = "# fish completion for tonnage, made by `tonnage completion fish`.\n\n";
  out +=
      "function __tonnage_command\n  set -l words (commandline -opc)\n"
      "  test (count $words) -gt 1; and test \"$words[2]\" = \"$argv[1]\"\nend\n\n";
  out += "function __tonnage_no_command\n  test (count (commandline -opc)) -eq 1\nend\n\n";
  out += "function __tonnage_gpus\n  printf '%s\\n'";
  for (const std::string& gpu : gpus) out += " \\\n    " + in_quotes(gpu, true);
  out += "\nend\n\ncomplete -c tonnage -f\n";
  out +=
      "complete -c tonnage -n __tonnage_no_command -l help -d 'Print the help'\n"
      "complete -c tonnage -n __tonnage_no_command -l version -d 'Print the version'\n";
  for (const CommandRow& command : commands) {
    out += fmt::format("\ncomplete -c tonnage -n __tonnage_no_command -a {} -d {}\n", command.name,
                       in_quotes(command.about, true));
    const std::string here =
        fmt::format("complete -c tonnage -n '__tonnage_command {}'", command.name);
    for (const OptionRow& option : command.options) out += here + fish_option(option) + "\n";
    if (command.runs_command) {
      out += here + " -F -a '(__fish_complete_command)'\n";
    } else if (!command.arguments.empty()) {
      const OptionRow& argument = command.arguments.front();
      if (argument.takes == Takes::kFile) out += here + " -F\n";
      if (argument.takes == Takes::kGpu) out += here + " -a '(__tonnage_gpus)'\n";
      if (argument.takes == Takes::kWords)
        out += here + fmt::format(" -a '{}'\n", fmt::join(argument.words, " "));
    }
  }
  return out;
}

}  // namespace tonnage::cli
