#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/command.h"
#include "cli/steps_text.h"
#include "inspect/lessons/lesson.h"
#include "inspect/small_attention.h"

namespace heed {
namespace {

struct LessonOptions {
  LessonInput input;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("x", self.input.x,
          "inputs of three-tokens, as \"1,0; 0,1\": rows by ';', numbers by ','");
    visit("w_q", self.input.w_q, "its weight of queries, a row for each column of x");
    visit("w_k", self.input.w_k, "its weight of keys");
    visit("w_v", self.input.w_v, "its weight of values");
  }
};

// The reader's own matrices are for one lesson, and an empty one is not a lesson's own.
Status CheckMatrices(const Options& options, std::string_view lesson, const LessonInput& input) {
  const std::tuple<std::string_view, std::string, const std::string*> matrices[] = {
      {"x", "--x", &input.x},
      {"w_q", "--w-q", &input.w_q},
      {"w_k", "--w-k", &input.w_k},
      {"w_v", "--w-v", &input.w_v}};
  for (const auto& [field, flag, text] : matrices) {
    if (!options.Given(field)) continue;
    if (lesson != "three-tokens") {
      return BadRequest(std::string(lesson), "matrices of the reader's own", "none",
                        "heed lesson three-tokens takes them");
    }
    HEED_TRY(ParseSmallMatrix(flag, *text));
  }
  return {};
}

std::string ListText(size_t width) {
  constexpr size_t kIndent = 21;
  std::string text;
  for (const Lesson& lesson : Lessons()) {
    text += fmt::format("  {:<18} {}\n", lesson.name, Wrap(lesson.title, width - kIndent, kIndent));
  }
  return text + "\nheed lesson NAME walks one, --json gives its steps as data.\n";
}

Result<Verdict> ListLessons(Session& session) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Lesson& lesson : Lessons()) {
    list.push_back({{"name", lesson.name}, {"title", lesson.title}, {"point", lesson.point}});
  }
  HEED_TRY(session.terminal.Document(nlohmann::ordered_json{{"lessons", std::move(list)}}.dump(2)));
  HEED_TRY(session.terminal.Say(ListText(session.terminal.text_width())));
  return Verdict::kDone;
}

Result<Verdict> RunLesson(Session& session, const std::vector<std::string>& names,
                          const LessonOptions& options) {
  if (names.size() > 1) {
    return BadRequest("LESSON", fmt::format("{} names", names.size()), "one, or none for the list");
  }
  if (names.empty()) return ListLessons(session);
  HEED_ASSIGN(const Lesson* const lesson, FindLesson(names[0]));
  HEED_TRY(CheckMatrices(session.options, lesson->name, options.input));
  HEED_ASSIGN(const std::vector<Step> steps, lesson->tell(options.input));
  const nlohmann::ordered_json json = {{"name", lesson->name},
                                       {"title", lesson->title},
                                       {"point", lesson->point},
                                       {"steps", StepsJson(steps)}};
  HEED_TRY(session.terminal.Document(json.dump(2)));
  const size_t width = session.terminal.text_width();
  HEED_TRY(session.terminal.Say(fmt::format(
      "{}\n\n{}\n{}\n", Wrap(fmt::format("{}: {}", lesson->name, lesson->title), width, 0),
      StepsText(steps, width), Wrap(lesson->point, width, 0))));
  return Verdict::kDone;
}

}  // namespace

Command LessonCommand() {
  Command command;
  command.name = "lesson";
  command.summary = "what a GPT is made of, worked in numbers small enough to do by hand";
  command.explanation =
      "Without a name lists the lessons; with one walks it step by step, each with its formula, "
      "shape and numbers, computed by the same kernels that check the fast ones.";
  command.example =
      "heed lesson\n"
      "heed lesson causal-attention\n"
      "heed lesson three-tokens --x \"1,0,0; 0,1,0; 0,0,1\" --w-q \"1,0; 0,1; 1,1\"";
  command.declare = [](Options& options) -> CommandBody {
    auto names = std::make_shared<std::vector<std::string>>();
    auto lesson = std::make_shared<LessonOptions>();
    options.BindArguments("[LESSON]", "a lesson's name", names.get());
    options.Bind("Matrices", *lesson);
    return [names, lesson](Session& session) { return RunLesson(session, *names, *lesson); };
  };
  return command;
}

}  // namespace heed
