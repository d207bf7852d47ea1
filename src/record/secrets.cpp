#include "record/secrets.h"

#include <cstring>
#include <utility>

namespace tonnage::record {

namespace {

constexpr char kHidden[] = "***";
constexpr size_t kLeastKey = 20;  // `login KEY`: a shorter word is a name

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_lower(c) || is_upper(c) || is_digit(c); }
char lower(char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_name(char c) { return is_alnum(c) || c == '_' || c == '-' || c == '.'; }
bool is_quote(char c) { return c == '"' || c == '\'' || c == '`'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A piece of one argument.
struct Text {
  const char* begin;
  const char* end;
  size_t size() const { return static_cast<size_t>(end - begin); }
  bool empty() const { return begin >= end; }
};

bool equals(Text word, const char* text) {
  const size_t n = std::strlen(text);
  if (word.size() != n) return false;
  for (size_t i = 0; i < n; i++)
    if (lower(word.begin[i]) != text[i]) return false;
  return true;
}
template <size_t N>
bool is_one_of(Text word, const char* const (&words)[N]) {
  for (const char* each : words)
    if (equals(word, each)) return true;
  return false;
}

constexpr const char* kSecretWords[] = {
    "secret",    "secrets",   "password",    "passwords",   "passwd",     "passphrase",
    "passwort",  "pwd",       "credential",  "credentials", "auth",       "authorization",
    "bearer",    "cookie",    "cookies",     "apikey",      "apikeys",    "apitoken",
    "authtoken", "accesskey", "accesstoken", "secretkey",   "privatekey", "pat",
    "signature", "sig",       "passcode",    "otp",         "jwt",        "pass"};
constexpr const char* kKeyKinds[] = {"api",          "access",  "private",    "secret", "account",
                                     "auth",         "signing", "encryption", "ssh",    "license",
                                     "subscription", "service", "app",        "wandb",  "openai"};
// Tokens of text, not of access: --pad-token, --token-ids.
constexpr const char* kTextTokens[] = {"pad", "eos", "bos", "unk", "mask",  "sep",    "cls",
                                       "new", "max", "min", "num", "image", "special"};
constexpr const char* kTokenFigures[] = {"id",    "ids",    "count", "length", "len", "size",
                                         "limit", "budget", "type",  "dim",    "num"};

// Words of a name: parts between - _ . and where small letters turn into capitals.
bool next_word(Text& rest, Text& word) {
  const char* p = rest.begin;
  while (p < rest.end && !is_alnum(*p)) p++;
  if (p == rest.end) return false;
  const char* from = p;
  while (p < rest.end && is_alnum(*p) && !(p > from && is_upper(*p) && is_lower(p[-1]))) p++;
  word = {from, p};
  rest.begin = p;
  return true;
}

// Whether what is given to this name is a secret.
bool names_secret(Text name) {
  Text word{}, before{nullptr, nullptr};
  bool token = false;
  while (next_word(name, word)) {
    if (is_one_of(word, kSecretWords)) return true;
    if (equals(word, "key") && !before.empty() && is_one_of(before, kKeyKinds)) return true;
    if (token && is_one_of(word, kTokenFigures)) token = false;
    if (equals(word, "token") && (before.empty() || !is_one_of(before, kTextTokens))) token = true;
    before = word;
  }
  return token;
}

// A letter or digit run of at least `least` characters, `extra` among them.
size_t run_of(const char* p, const char* end, const char* extra, size_t least) {
  const char* at = p;
  while (at < end && (is_alnum(*at) || (*extra && std::strchr(extra, *at) && *at))) at++;
  const auto n = static_cast<size_t>(at - p);
  return n >= least ? n : 0;
}

// Keys of well-known services, by their published beginnings: the length of the one at p, or 0.
size_t service_key(const char* p, const char* end) {
  struct Kind {
    const char* beginning;
    size_t least;
  };
  static constexpr Kind kKinds[] = {
      {"hf_", 16},         {"ghp_", 16},   {"gho_", 16},      {"ghs_", 16},  {"ghu_", 16},
      {"github_pat_", 16}, {"glpat-", 12}, {"xoxb-", 10},     {"xoxp-", 10}, {"xoxa-", 10},
      {"sk-", 16},         {"pypi-", 16},  {"AKIA", 12},      {"ASIA", 12},  {"AIza", 20},
      {"eyJ", 20},         {"nvapi-", 16}, {"dckr_pat_", 12}, {"r8_", 20},   {"gsk_", 20},
      {"rpa_", 20}};
  for (const Kind& kind : kKinds) {
    const size_t n = std::strlen(kind.beginning);
    if (static_cast<size_t>(end - p) < n || std::memcmp(p, kind.beginning, n) != 0) continue;
    if (const size_t rest = run_of(p + n, end, "_-.", kind.least)) return n + rest;
  }
  return 0;
}

class Hider {
 public:
  Hider(char* arguments, size_t n) : bytes_(arguments), n_(n) {}
  size_t run() {
    size_t at = 0;
    while (at < n_) {
      const char* argument = bytes_ + at;
      const size_t length = ::strnlen(argument, n_ - at);
      const bool ends = at + length < n_;
      whole({argument, argument + length});
      at += length + (ends ? 1 : 0);
      if (ends) put('\0');
    }
    return out_;
  }

 private:
  enum class Kind { kOther, kSecret, kUser, kLogin };
  static Kind kind_of(Text word) {
    if (equals(word, "-u") || equals(word, "--user")) return Kind::kUser;
    if (equals(word, "login")) return Kind::kLogin;
    return names_secret(word) ? Kind::kSecret : Kind::kOther;
  }
  void put(char c) { bytes_[out_++] = c; }
  void put(Text text) {
    for (const char* p = text.begin; p < text.end; p++) put(*p);
  }
  // What is hidden never takes more room than before.
  void hide(Text text) {
    for (size_t i = 0; i < sizeof kHidden - 1 && i < text.size(); i++) put(kHidden[i]);
  }

  void whole(Text text) {
    const Kind kind = std::exchange(next_is_, Kind::kOther);
    const bool option = !text.empty() && *text.begin == '-';
    if (kind == Kind::kOther || option) return scan(text);
    if (kind == Kind::kSecret) return hide(text);
    if (kind == Kind::kLogin) {
      const bool key = run_of(text.begin, text.end, "_-.", kLeastKey) == text.size();
      return key ? hide(text) : scan(text);
    }
    // `--user name:password`: the name stays.
    const auto* colon = static_cast<const char*>(std::memchr(text.begin, ':', text.size()));
    if (colon == nullptr) return scan(text);
    put(Text{text.begin, colon + 1});
    hide({colon + 1, text.end});
  }

  // Looks through one argument, which may be a line of shell or JSON with many names in it.
  void scan(Text text) {
    const char* p = text.begin;
    while (p < text.end) {
      if (const size_t n = p == text.begin || !is_alnum(p[-1]) ? service_key(p, text.end) : 0) {
        hide({p, p + n});
        p += n;
      } else if (is_name(*p)) {
        p = name(p, text.end);
      } else if (*p == ':' && text.end - p > 3 && p[1] == '/' && p[2] == '/') {
        p = authority(p, text.end);
      } else {
        put(*p++);
      }
    }
  }

  // A name at p, and what is given to it.
  const char* name(const char* p, const char* end) {
    const char* last = p;
    while (last < end && is_name(*last)) last++;
    const Text word{p, last};
    // Looked at before it is put: what is put may lie over it, moved.
    const Kind kind = kind_of(word);
    const bool option = *p == '-';
    put(word);
    const char* at = last;
    if (at < end && is_quote(*at)) at++;
    const char* separator = at;
    while (separator < end && is_space(*separator)) separator++;
    const bool given = separator < end && (*separator == '=' || *separator == ':') &&
                       !(*separator == ':' && separator + 1 < end && separator[1] == '/');
    if (kind == Kind::kOther) return last;
    if (given) {
      const bool header = *separator == ':';
      at = separator + 1;
      while (at < end && is_space(*at)) at++;
      put(Text{last, at});
      return kind == Kind::kSecret ? value(at, end, header) : at;
    }
    if (at == end) {
      if (option || kind == Kind::kLogin) next_is_ = kind;
      return last;
    }
    // A line of shell: the next word is the value.
    if (option && kind == Kind::kSecret && separator > at && separator < end && *separator != '-') {
      put(Text{last, separator});
      return value(separator, end, false);
    }
    return last;
  }

  // A secret at p: to its closing quote, else to the end of the word; a header's to its end.
  const char* value(const char* p, const char* end, bool header) {
    const char* last = p;
    if (p < end && is_quote(*p)) {
      put(*p++);
      last = p;
      while (last < end && *last != p[-1]) last++;
    } else {
      while (last < end && !is_quote(*last) && *last != '&' && *last != ';' && *last != ',' &&
             *last != '}' && (header || !is_space(*last)))
        last++;
    }
    hide({p, last});
    return last;
  }

  // "://" at p: what stands before an @ is a name and a password.
  const char* authority(const char* p, const char* end) {
    const char* from = p + 3;
    put(Text{p, from});
    const char* last = from;
    const char* at = nullptr;
    for (; last < end && *last != '/' && *last != '?' && *last != '#' && !is_space(*last) &&
           !is_quote(*last);
         last++)
      if (*last == '@') at = last;
    if (!at) return from;
    hide({from, at});
    return at;
  }

  char* bytes_;
  size_t n_;
  size_t out_ = 0;
  Kind next_is_ = Kind::kOther;  // what the next argument is, by the one before it
};

}  // namespace

size_t hide_secrets(char* arguments, size_t n) { return Hider(arguments, n).run(); }

}  // namespace tonnage::record
