#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/steps_text.h"
#include "inspect/lessons/lesson.h"

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

constexpr std::string_view kMatrixFields[] = {"x", "w_q", "w_k", "w_v"};

std::string ListText() {
  std::string text;
  for (const Lesson& lesson : Lessons()) {
    text += fmt::format("  {:<18} {}\n", lesson.name, lesson.title);
  }
  return text + "\nheed lesson NAME walks one, --json gives its steps as data.\n";
}

Result<Verdict> ListLessons(Session& session) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Lesson& lesson : Lessons()) {
    list.push_back({{"name", lesson.name}, {"title", lesson.title}, {"point", lesson.point}});
  }
  HEED_TRY(session.terminal.Document(nlohmann::ordered_json{{"lessons", std::move(list)}}.dump(2)));
  HEED_TRY(session.terminal.Say(ListText()));
  return Verdict::kDone;
}

Result<Verdict> RunLesson(Session& session, const std::vector<std::string>& names,
                          const LessonOptions& options) {
  if (names.size() > 1) {
    return BadRequest("LESSON", fmt::format("{} names", names.size()), "one, or none for the list");
  }
  if (names.empty()) return ListLessons(session);
  HEED_ASSIGN(const Lesson* const lesson, FindLesson(names[0]));
  for (const std::string_view field : kMatrixFields) {
    if (!session.options.Given(field) || lesson->name == "three-tokens") continue;
    return BadRequest(lesson->name.data(), "matrices of the reader's own", "none",
                      "heed lesson three-tokens takes them");
  }
  HEED_ASSIGN(const std::vector<Step> steps, lesson->tell(options.input));
  const nlohmann::ordered_json json = {{"name", lesson->name},
                                       {"title", lesson->title},
                                       {"point", lesson->point},
                                       {"steps", StepsJson(steps)}};
  HEED_TRY(session.terminal.Document(json.dump(2)));
  HEED_TRY(session.terminal.Say(fmt::format("{}: {}\n\n{}\n{}\n", lesson->name, lesson->title,
                                            StepsText(steps), Wrap(lesson->point, 100, 0))));
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
