#!/usr/bin/env python3
"""tools/function_sizes.py finds functions where they begin and end, and counts what branches."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from function_sizes import functions_of  # noqa: E402

CODE = """#include <vector>
namespace tonnage {
namespace {

struct Point {
  int x = 0;
  int sum(int y) const {
    return x > 0 && y > 0 ? x + y : 0;
  }
};

constexpr int kTable[] = {
    1, 2,
};

template <class T>
void long_name(const std::vector<T>& values,
               int first) {
  for (const T& value : values) {
    if (value || first) continue;  // if (a && b)
    const char* text = "if (x) { while (1) }";
    const auto f = [&](int a) {
      return a ? 1 : 2;
    };
  }
}

}  // namespace

Class::Class(int a)
    : a_(a) {
  switch (a) {
    case 1: break;
    case 2: break;
  }
}

TEST(Name, What) {
  const int million = 1'000'000;
}

int one_line() { return 1; }

}  // namespace tonnage
"""


class FunctionSizes(unittest.TestCase):
    def test_names_lines_and_complexity(self):
        found = [(f.name, f.line, f.lines, f.complexity) for f in functions_of(CODE)]
        self.assertEqual(found, [("sum", 7, 3, 3), ("long_name", 16, 11, 5),
                                 ("Class::Class", 30, 7, 2), ("TEST", 38, 3, 1)])

    def test_a_function_that_is_too_long_is_seen(self):
        body = "  f();\n" * 120
        (found,) = functions_of("void g() {\n" + body + "}\n")
        self.assertEqual(found.lines, 122)


if __name__ == "__main__":
    unittest.main()
