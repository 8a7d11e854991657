// html.cpp -- the page: its head, the navigation and the order of the sections.
#include "tuner/report/html.hpp"

#include <fmt/format.h>

#include "tuner/report/escape.hpp"
#include "tuner/report/names.hpp"
#include "tuner/report/render.hpp"
#include "tuner/report/style.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using namespace detail;

/// Links to all shapes, by GPU and problem.
std::string shape_index(const Report& report) {
  std::string lists;
  for (std::size_t number = 0; number < report.devices.size(); ++number) {
    const DevicePlace place{report.devices[number], number};
    if (report.devices.size() > 1)
      lists += fmt::format("<p><b><bdi>{}</bdi></b></p>\n", escape_html(place.device.device.name));
    for (std::size_t i = 0; i < place.device.problems.size(); ++i) {
      lists += fmt::format("<p>{}:", html_link(problem_id(place, i), group_title(place.device.problems[i])));
      for (const std::size_t winner : place.device.problems[i].winners) {
        lists += fmt::format(" {}", html_link(shape_id(place, winner), shape_name(place.device.winners[winner].shape)));
      }
      lists += "</p>\n";
    }
  }
  return lists.empty() ? lists : "<div class=\"index\">" + html_details("Find a shape", lists) + "</div>\n";
}

constexpr const char* kHowToRead =
    "<h2 id=\"how\">How to read this</h2>\n"
    "<p>The <b>read limit</b> is the time of the fastest kernel that only reads the same bytes, measured beside the "
    "candidates. <b>x limit</b> is the winner's median over it. <b>&#177;</b> is half the 95 % bootstrap interval of "
    "the median. <b>vs default</b> is the time of the untuned configuration over the winner's, and <b>vs runner-up</b> "
    "that of the fastest other configuration with at least three samples. A ratio is grey if its interval reaches "
    "1.</p>\n"
    "<p><b>Where the time goes</b> follows from the cost model, which is fitted to this GPU's trials. Start-up is the "
    "launch, the schedule and the first bytes. Stream is the transfer of K and V. Segments is draining and refilling "
    "the ring when a CTA goes on to another output tile. Fix-up is storing and merging partials. The rest is what the "
    "model does not explain.</p>\n"
    "<p>docs/reports.md of leanattn says how each number is computed.</p>\n";

}  // namespace

std::string to_html(const Report& report) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>leanattn tuning report</title>\n<style>" +
      page_style() + "</style>\n</head>\n<body>\n<h1>leanattn tuning report</h1>\n";
  html += fmt::format("<p class=\"note\">Written by library {}.</p>\n", escape_html(report.library_revision));
  std::string links;
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const DeviceModel& model = report.devices[i].device;
    links += fmt::format("<a href=\"#gpu{}\"><bdi>{}</bdi>, {} SMs</a> ", i, escape_html(model.name), model.sm_count);
  }
  if (report.difference) links += "<a href=\"#difference\">Against an earlier report</a> ";
  if (report.regret) links += "<a href=\"#regret\">Held-out regret</a> ";
  if (report.paper) links += "<a href=\"#paper\">The paper's sweeps</a> ";
  html += "<nav>" + links + "<a href=\"#how\">How to read this</a></nav>\n";
  html += shape_index(report);
  if (report.devices.empty()) html += "<p>Nothing has been tuned.</p>\n";
  for (std::size_t i = 0; i < report.devices.size(); ++i) html += html_device({report.devices[i], i});
  if (report.difference) html += html_difference(*report.difference);
  if (report.regret) html += html_regret(*report.regret);
  if (report.paper) html += html_paper(*report.paper);
  return html + kHowToRead + "</body>\n</html>\n";
}

}  // namespace v1
}  // namespace leanattn
