#include "cli/options.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <sstream>

#include "support/shell.h"

namespace heed {

enum class Flavour { kPlain, kSalty, kSour };
constexpr std::array<EnumName<Flavour>, 3> kFlavours{
    {{Flavour::kPlain, "plain"}, {Flavour::kSalty, "salty"}, {Flavour::kSour, "sour"}}};
std::span<const EnumName<Flavour>> EnumNames(Flavour) { return kFlavours; }

namespace {

struct Dish {
  int64_t n_layer = 4;
  int64_t head_dim = 0;
  double learning_rate = 1e-3;
  bool bias = true;
  bool weight_tying = false;
  std::string sample_prompt = "Once";
  Flavour flavour = Flavour::kPlain;
  std::vector<std::string> stop;
  std::vector<double> temperature = {0.8};

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("n_layer", self.n_layer, "blocks");
    visit("head_dim", self.head_dim, "width of a head; n_embd / n_head when not given");
    visit("learning_rate", self.learning_rate, "peak step size");
    visit("bias", self.bias, "biases in linear layers");
    visit("weight_tying", self.weight_tying, "one matrix for both ends");
    visit("sample_prompt", self.sample_prompt, "text to go on from");
    visit("flavour", self.flavour, "taste");
    visit("stop", self.stop, "text that ends a sample");
    visit("temperature", self.temperature, "of sampling");
  }
  bool operator==(const Dish&) const = default;
};

// "" when parsing went well, else the message.
std::string Parse(const std::vector<std::string>& arguments, Dish* dish,
                  std::vector<std::string>* rest = nullptr) {
  Options options;
  options.Bind("Options", *dish);
  if (rest != nullptr) options.BindArguments("FILE...", "files", rest);
  const Status status = options.Parse(arguments);
  return status ? "" : status.error().Message();
}

std::string Refusal(const std::vector<std::string>& arguments) {
  Dish dish;
  return Parse(arguments, &dish);
}

TEST(Options, KebabCaseAndNanoGptsSpelling) {
  Dish dish;
  EXPECT_EQ(Parse({"--n-layer", "6", "--learning_rate=6e-4", "--bias=False", "--weight_tying=True",
                   "--flavour=sour", "--head-dim=8"},
                  &dish),
            "");
  EXPECT_EQ(dish.n_layer, 6);
  EXPECT_EQ(dish.learning_rate, 6e-4);
  EXPECT_FALSE(dish.bias);
  EXPECT_TRUE(dish.weight_tying);
  EXPECT_EQ(dish.flavour, Flavour::kSour);
  EXPECT_EQ(dish.head_dim, 8);
}

TEST(Options, TruthByFlagAndItsOppositeLastWins) {
  const std::vector<std::pair<std::vector<std::string>, bool>> cases = {
      {{"--bias"}, true},
      {{"--no-bias"}, false},
      {{"--no-bias", "--bias"}, true},
      {{"--bias=true", "--bias=false"}, false},
      {{"--no-bias=false"}, true}};
  for (const auto& [arguments, expected] : cases) {
    Dish dish;
    dish.bias = !expected;
    EXPECT_EQ(Parse(arguments, &dish), "");
    EXPECT_EQ(dish.bias, expected) << arguments.back();
  }
  Dish dish;
  dish.weight_tying = true;
  EXPECT_EQ(Parse({"--no_weight_tying"}, &dish), "");
  EXPECT_FALSE(dish.weight_tying);
}

TEST(Options, FlagsTakeNoArgumentThatFollows) {
  Dish dish;
  std::vector<std::string> rest;
  EXPECT_EQ(
      Parse({"a.txt", "--weight-tying", "b.txt", "--n-layer", "2", "-", "--", "--c"}, &dish, &rest),
      "");
  EXPECT_EQ(rest, (std::vector<std::string>{"a.txt", "b.txt", "-", "--c"}));
  EXPECT_TRUE(dish.weight_tying);
  EXPECT_EQ(dish.n_layer, 2);
}

TEST(Options, ValuesAreTakenAsTheyStand) {
  for (const std::string value : {"[INST] hi [/INST]", "-5 is less", "a,b", "", " x ", "\"q\"",
                                  "--like-a-flag", "naïve", "=", "++"}) {
    Dish dish;
    EXPECT_EQ(Parse({"--sample-prompt", value}, &dish), "");
    EXPECT_EQ(dish.sample_prompt, value);
    EXPECT_EQ(Parse({"--sample_prompt=" + value}, &dish), "");
    EXPECT_EQ(dish.sample_prompt, value);
  }
  Dish dish;
  EXPECT_EQ(Parse({"--temperature", "-1"}, &dish), "");
  EXPECT_EQ(dish.temperature, std::vector<double>{-1});
}

TEST(Options, ListsRepeatAndReplaceTheirDefault) {
  Dish dish;
  EXPECT_EQ(
      Parse({"--temperature", "0", "--stop=x", "--temperature=1.5", "--stop", "[y,z]"}, &dish), "");
  EXPECT_EQ(dish.temperature, (std::vector<double>{0, 1.5}));
  EXPECT_EQ(dish.stop, (std::vector<std::string>{"x", "[y,z]"}));
}

TEST(Options, RefusalsAreOneLineThatSaysWhatToDo) {
  EXPECT_EQ(Refusal({"--n-laier", "3"}),
            "--n-laier: found unknown option, expected a known option; did you mean --n-layer?");
  EXPECT_EQ(Refusal({"--n_laier=3"}),
            "--n_laier: found unknown option, expected a known option; did you mean --n-layer?");
  EXPECT_EQ(Refusal({"--no-bais"}),
            "--no-bais: found unknown option, expected a known option; did you mean --no-bias?");
  EXPECT_EQ(Refusal({"--zebra"}),
            "--zebra: found unknown option, expected a known option; see --help");
  EXPECT_EQ(Refusal({"-x"}), "-x: found unknown option, expected a known option; see --help");
  EXPECT_EQ(Refusal({"--n-layer"}), "--n-layer: found no value, expected N");
  EXPECT_EQ(Refusal({"--n_layer"}), "--n-layer: found no value, expected N");
  EXPECT_EQ(Refusal({"--sample-prompt", "--bias"}),
            "--sample-prompt: found no value before --bias, expected PROMPT");
  EXPECT_EQ(Refusal({"--n-layer", "four"}), "--n-layer: found 'four', expected an integer");
  EXPECT_EQ(Refusal({"--n-layer="}), "--n-layer: found '', expected an integer");
  EXPECT_EQ(Refusal({"--learning-rate=nan"}),
            "--learning-rate: found 'nan', expected a finite number");
  EXPECT_EQ(Refusal({"--bias=maybe"}), "--bias: found 'maybe', expected true or false");
  EXPECT_EQ(Refusal({"--flavour", "sur"}),
            "--flavour: found 'sur', expected plain, salty or sour; did you mean sour?");
  EXPECT_EQ(Refusal({"text.txt"}),
            "command line: found 'text.txt', expected options alone; see --help");
  EXPECT_EQ(Refusal({"--config"}), "--config: found no value, expected FILE.toml");
}

TEST(Options, DefaultsThenPresetThenFileThenFlags) {
  const TemporaryFolder folder;
  const std::string file = folder / "c.toml";
  WriteText(file, "n_layer = 12\nlearning-rate = 1\nstop = ['a', 'b']\nbias = false\n");
  Dish dish;
  Options options;
  options.Bind("Options", dish);
  ASSERT_TRUE(options.Parse({"--learning-rate", "2", "--config", file, "--flavour=sour"}));
  EXPECT_TRUE(options.Given("n_layer") && options.Given("learning_rate") && options.Given("bias"));
  EXPECT_FALSE(options.Given("head_dim") || options.Given("sample_prompt"));
  // A preset fills everything; what was given stands again after Apply.
  dish = Dish{.n_layer = 1, .head_dim = 64, .learning_rate = 3, .flavour = Flavour::kSalty};
  ASSERT_TRUE(options.Apply());
  EXPECT_EQ(dish, (Dish{.n_layer = 12,
                        .head_dim = 64,
                        .learning_rate = 2,
                        .bias = false,
                        .flavour = Flavour::kSour,
                        .stop = {"a", "b"}}));
}

TEST(Options, FilesErrorsNameTheLine) {
  const TemporaryFolder folder;
  const std::string file = folder / "c.toml";
  const auto refusal = [&](const std::string& text) {
    WriteText(file, text);
    const std::string message = Refusal({"--config", file});
    return message.starts_with(file) ? message.substr(file.size()) : message;
  };
  EXPECT_EQ(refusal("# one\nn_laier = 3\n"),
            ":2: n_laier: found unknown key, expected a known one; did you mean n_layer?");
  EXPECT_EQ(refusal("n_layer = 'four'\n"), ":1: n_layer: found a string, expected an integer");
  EXPECT_EQ(refusal("n_layer = 4.0\n"),
            ":1: n_layer: found a number with a fraction, expected an integer");
  EXPECT_EQ(refusal("\n\nlearning_rate = nan\n"),
            ":3: learning_rate: found 'nan', expected a finite number");
  EXPECT_EQ(refusal("bias = 1\n"), ":1: bias: found an integer, expected true or false");
  EXPECT_EQ(refusal("flavour = 'sweet'\n"),
            ":1: flavour: found 'sweet', expected plain, salty or sour");
  EXPECT_EQ(refusal("stop = [1]\n"), ":1: stop: found an integer, expected a string");
  EXPECT_EQ(refusal("sample_prompt = ['a']\n"),
            ":1: sample_prompt: found an array, expected a string");
  EXPECT_EQ(refusal("[model]\nn_layer = 4\n"),
            ":1: model: found unknown key, expected a known one; see --help");
  EXPECT_EQ(refusal("n_layer = 4\nn-layer = 5\n"),
            ":1: n_layer: found a key given twice, expected one spelling of it");
  EXPECT_TRUE(refusal("n_layer = 4\nn_layer = 5\n").starts_with(":2: "));
  EXPECT_TRUE(refusal("n_layer 4\n").starts_with(":1: "));
  EXPECT_TRUE(refusal("n_layer = 99999999999999999999\n").starts_with(":1: "));
  EXPECT_EQ(refusal("").size(), 0);
  EXPECT_EQ(Refusal({"--config", file + "x"}), file + "x: no such file; check the path");
}

RC_GTEST_PROP(Options, EverySettingSurvivesToml, ()) {
  Dish dish;
  dish.n_layer = *rc::gen::arbitrary<int64_t>();
  dish.head_dim = *rc::gen::arbitrary<int64_t>();
  dish.learning_rate = *rc::gen::arbitrary<double>();
  dish.bias = *rc::gen::arbitrary<bool>();
  dish.weight_tying = *rc::gen::arbitrary<bool>();
  dish.flavour = *rc::gen::element(Flavour::kPlain, Flavour::kSalty, Flavour::kSour);
  // Any ASCII, controls and DEL included, and some letters of two to four bytes.
  const auto text = rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
          rc::gen::map(rc::gen::inRange(0, 128), [](int c) { return std::string(1, char(c)); }),
          rc::gen::element<std::string>("é", "→", "😀"))),
      [](const std::vector<std::string>& parts) {
        std::string joined;
        for (const std::string& part : parts) joined += part;
        return joined;
      });
  dish.sample_prompt = *text;
  dish.stop = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(text));
  dish.temperature = *rc::gen::nonEmpty(rc::gen::arbitrary<std::vector<double>>());
  const TemporaryFolder folder;
  const std::string file = folder / "config.toml";
  WriteText(file, ToToml(dish));
  Dish again;
  RC_ASSERT(Parse({"--config", file}, &again) == "");
  RC_ASSERT(again == dish);
}

TEST(Options, JsonEchoHasEveryField) {
  EXPECT_EQ(ToJson(Dish{}),
            R"({"n_layer":4,"head_dim":0,"learning_rate":0.001,"bias":true,"weight_tying":false,)"
            R"("sample_prompt":"Once","flavour":"plain","stop":[],"temperature":[0.8]})");
}

TEST(Options, OnlyTheNamedFieldsAreOptions) {
  Dish dish;
  Options options;
  options.Bind("Options", dish, {"n_layer"});
  EXPECT_TRUE(options.Parse({"--n-layer=2"}));
  EXPECT_FALSE(options.Parse({"--bias"}));
}

TEST(Options, HelpIsAlignedAndShowsDefaults) {
  Dish dish;
  Options options;
  options.Bind("Model", dish);
  for (const size_t width : {60, 80, 100}) {
    std::istringstream lines(options.List(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
  const std::string help = options.List(100);
  EXPECT_NE(help.find("  --n-layer N                 blocks (default 4)\n"), std::string::npos)
      << help;
  EXPECT_NE(help.find("--bias/--no-bias "), std::string::npos);
  EXPECT_NE(help.find("--flavour plain|salty|sour  taste (default plain)\n"), std::string::npos);
  EXPECT_EQ(help.find("(default 0)"), std::string::npos) << "a zero that means derived";
  EXPECT_EQ(Wrap("aa bb cc", 5, 2), "aa bb\n  cc");
}

}  // namespace
}  // namespace heed
