// style.cpp -- the style sheets as text.
#include "tuner/report/style.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

// The series' colours can be told apart with common colour-vision deficiencies. The heat scale goes from the page's own
// colour to a strong one, so that a time far from its limit stands out on light and on dark pages.
constexpr const char* kChart = R"css(
:root{--ink:#1b1f24;--soft:#59636e;--rule:#d5dae0;--paper:#ffffff;
--c0:#2a6db0;--c1:#c4601a;--c2:#2c8757;--c3:#8f4aa8;--c4:#85861c;--c5:#bd3b49;--c6:#2c8c9b;--c7:#7b828b}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e8ed;--soft:#9aa5b1;--rule:#353c45;--paper:#15181c;
--c0:#6aa5e4;--c1:#ef9a56;--c2:#63bf8c;--c3:#c48bd9;--c4:#c9cc62;--c5:#ee7f89;--c6:#66c2cf;--c7:#a2a9b3}}
.tick{font:12px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--rule);stroke-width:.6;fill:none}
.axis{stroke:var(--soft);stroke-width:1;fill:none}
.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3;fill:none}
.line{fill:none;stroke-width:1.6}
.dot{stroke:var(--paper);stroke-width:.8}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.c7{stroke:var(--c7)}
.dot.c0{fill:var(--c0)}.dot.c1{fill:var(--c1)}.dot.c2{fill:var(--c2)}.dot.c3{fill:var(--c3)}
.dot.c4{fill:var(--c4)}.dot.c5{fill:var(--c5)}.dot.c6{fill:var(--c6)}.dot.c7{fill:var(--c7)}
)css";

constexpr const char* kPage = R"css(
:root{--wash:#f5f7f9;
--h0:#eef3f0;--h1:#fbf3df;--h2:#f9e5bd;--h3:#f6d091;--h4:#f0b265;--h5:#e58e42;--h6:#c95f2a;--h7:#9c3a1f;
--g0:#1b1f24;--g6:#ffffff}
@media screen and (prefers-color-scheme:dark){:root{--wash:#1c2025;
--h0:#1f2724;--h1:#2f2b21;--h2:#40351f;--h3:#57431e;--h4:#72521d;--h5:#96661e;--h6:#c68128;--h7:#f2a348;
--g0:#e4e8ed;--g6:#171003}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:28px 24px 64px;max-width:1240px;background:var(--paper);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:24px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:19px;margin:44px 0 4px;padding-top:10px;border-top:2px solid var(--ink)}
h3{font-size:15.5px;margin:32px 0 2px;padding-top:8px;border-top:1px solid var(--rule)}
h4{font-size:13px;margin:18px 0 4px}
p{margin:4px 0 8px;max-width:78ch}
.note,figcaption{color:var(--soft);font-size:12.5px}
a{color:var(--c0)}
nav{margin:8px 0 0}nav a{margin-right:16px}
.headline{font-size:16px;line-height:1.5;margin:8px 0}
.index p{margin:2px 0}.index a{margin-right:10px;white-space:nowrap}.index a:first-child{margin-right:0}
.shape{display:none}
.shape:target{display:block;background:var(--wash);border-left:3px solid var(--c0);margin:8px 0;padding:2px 14px 8px}
.links a{margin-right:14px}
table.facts th{border-bottom:1px solid var(--rule);vertical-align:baseline;white-space:nowrap}
code,.mono{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
figure{margin:10px 0 0;min-width:0}
figcaption{margin:0 0 2px}
.scroll{overflow-x:auto;max-width:100%}
.chart{display:block;width:100%;max-width:540px;height:auto}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:4px 28px;align-items:start}
table{border-collapse:collapse;font-size:12.5px;margin:6px 0 4px}
th,td{padding:3px 9px 3px 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--soft);vertical-align:bottom;border-bottom:1px solid var(--soft)}
tbody tr:hover{background:var(--wash)}
.r{text-align:right;white-space:nowrap}.nw{white-space:nowrap}
.dim{color:var(--soft)}
td.r>small{display:block;font-size:10.5px;color:var(--soft)}
.wrap{min-width:22ch;max-width:66ch}
table.heat{border-collapse:separate;border-spacing:2px}
table.heat th,table.heat td{border:0;padding:5px 8px;text-align:right;white-space:nowrap}
table.heat td{min-width:62px;border-radius:2px}
table.heat td b{display:block;font-weight:600}
table.heat td small{font-size:11px;opacity:.85}
table.heat td a{display:block;color:inherit;text-decoration:none}
table.heat td a:hover b,table.heat td a:focus b{text-decoration:underline}
.h0{background:var(--h0)}.h1{background:var(--h1)}.h2{background:var(--h2)}.h3{background:var(--h3)}
.h4{background:var(--h4);color:#1b1f24}.h5{background:var(--h5);color:#1b1f24}.h6{background:var(--h6);color:var(--g6)}
.h7{background:var(--h7);color:var(--g6)}
td.h0,td.h1,td.h2,td.h3,td.h4,td.h5,td.h6,td.h7{padding-left:8px;padding-right:8px}
[class*=" h"]+td{padding-left:9px}
.key{display:inline-flex;flex-wrap:wrap;gap:2px 10px;font-size:12px;color:var(--soft);margin:4px 0}
.key i{display:inline-block;width:14px;height:11px;margin-right:4px;vertical-align:-1px;border-radius:2px}
.bar{display:block;width:150px;height:14px}
.strip{display:block;width:170px;height:16px}
td:has(>svg){vertical-align:middle}
.f0{fill:var(--c0);background:var(--c0)}.f1{fill:var(--c4);background:var(--c4)}.f2{fill:var(--c3);background:var(--c3)}
.f3{fill:var(--c5);background:var(--c5)}.f4{fill:var(--rule);background:var(--rule)}
.limit{stroke:var(--ink);stroke-width:2}
.whisker{stroke:var(--soft);stroke-width:1;fill:none}.box{fill:var(--c0);fill-opacity:.35}.middle{stroke:var(--c0);stroke-width:2}
.good{color:var(--c2)}.bad{color:var(--c5)}
details>summary{cursor:pointer;font-size:13px;font-weight:600;margin:14px 0 2px}
@media screen and (prefers-color-scheme:dark){.h4,.h5{color:#fff}}
@media (max-width:600px){body{padding:16px 12px 48px}h1{font-size:20px}h2{font-size:17px}.headline{font-size:15px}
.wide{display:none}td.r{padding-left:8px}td.nw,.wrap{white-space:normal;min-width:0}
.cards,.cards tbody{display:block;width:100%}.cards thead{display:none}
.cards tr{display:flex;flex-wrap:wrap;gap:2px 12px;padding:7px 0;border-bottom:1px solid var(--rule)}
.cards td{border:0;padding:1px 0}.cards td:first-child{width:100%;font-weight:600}
.cards td.wrap{width:100%;order:1;color:var(--soft)}
.cards td:not(:first-child):not(.wrap)::before{content:attr(data-label) " ";color:var(--soft);font-weight:400}
.cards td[class*=" h"]{padding:1px 6px;border-radius:2px}.cards td[class*=" h"]::before{color:inherit!important}
.facts th{white-space:normal!important}.facts code{overflow-wrap:anywhere}.shape:target{padding:2px 8px 8px}}
@page{size:A4 landscape;margin:12mm}
@media print{body{max-width:none;padding:0;font-size:9.5pt}.scroll{overflow:visible}table{font-size:8pt}
th,td{padding-right:6px}tr,figure,.key{break-inside:avoid}h2,h3,h4,summary{break-after:avoid}nav{display:none}
.pair{grid-template-columns:1fr 1fr}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)css";

}  // namespace

std::size_t heat_class(double ratio) {
  return static_cast<std::size_t>(std::lower_bound(kHeatSteps.begin(), kHeatSteps.end(), ratio) - kHeatSteps.begin());
}

std::string chart_style() { return kChart; }

std::string page_style() { return std::string(kChart) + kPage; }

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
