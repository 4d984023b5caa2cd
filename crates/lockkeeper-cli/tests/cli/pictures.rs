//! The pictures of the guide: tests draw them from what happens. A picture that is different from the kept one fails its test, and
//! `LOCKKEEPER_DRAW=1` draws it again.

use std::fmt::Write as _;
use std::path::Path;

/// Compares a drawing with the picture of the guide. A failure prints `shown`.
pub(crate) fn compare(name: &str, drawn: &str, shown: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/pictures").join(format!("{name}.svg"));
    if std::env::var_os("LOCKKEEPER_DRAW").is_some() {
        std::fs::write(&file, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == drawn, "{} shows something else; LOCKKEEPER_DRAW=1 draws:\n{shown}", file.display());
}

/// A picture with letters of one width.
pub(crate) struct Svg {
    text: String,
    /// The width of a letter.
    letter: f64,
}

impl Svg {
    /// Begins a picture. `head` comes before the group of all texts, which has these attributes.
    pub(crate) fn new((width, height): (usize, usize), font_size: u8, head: &str, attributes: &str) -> Self {
        // Chromium keeps spaces for the style, and other programs for the attribute.
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
             <style>text {{ white-space: pre }}</style>\n\
             {head}\
             <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"{font_size}\"{attributes} xml:space=\"preserve\">\n"
        );
        Svg { text, letter: letter(font_size) }
    }

    /// Draws a line of text. Its length is fixed, so columns stay in line whatever font the reader has.
    pub(crate) fn line(&mut self, (x, y): (usize, usize), attributes: &str, line: &str) {
        let length = line.chars().count() as f64 * self.letter;
        let line = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        _ = writeln!(self.text, "<text x=\"{x}\" y=\"{y}\"{attributes} textLength=\"{length:.1}\">{line}</text>");
    }

    fn bar(&mut self, (x, y): (usize, usize), (width, height): (usize, usize), class: &str) {
        _ = writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>"
        );
    }

    pub(crate) fn end(self) -> String {
        self.text + "</g>\n</svg>\n"
    }
}

/// Returns the width of a letter of this size.
pub(crate) fn letter(font_size: u8) -> f64 {
    f64::from(font_size) * 0.6
}

/// What a contender was seen to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not there.
    Absent,
    Waits(String),
    Holds(String),
    /// It was asked to end, and holds the lock.
    Asked(String),
    /// It was killed, and its session has not ended.
    Killed(String),
    Ended(String),
    /// No state of a contender, but what was read from the servers: one thing in each line.
    Read(String),
}

impl State {
    /// The words, and the class of the bar behind them.
    fn drawn(&self) -> (&str, Option<&'static str>) {
        match self {
            State::Absent => ("", None),
            State::Waits(words) => (words, Some("waits")),
            State::Holds(words) => (words, Some("holds")),
            State::Asked(words) => (words, Some("asked")),
            State::Killed(words) => (words, Some("killed")),
            State::Ended(words) | State::Read(words) => (words, None),
        }
    }
}

/// What happened to a few contenders, from top to bottom: a column for each of them, and a row for each event.
pub(crate) struct Chart {
    heading: String,
    lanes: Vec<String>,
    rows: Vec<(String, Vec<State>)>,
}

impl Chart {
    /// Begins a chart. The name of a lane may have several lines.
    pub(crate) fn new(heading: &str, lanes: &[&str]) -> Self {
        Chart {
            heading: heading.to_owned(),
            lanes: lanes.iter().map(|&lane| lane.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds an event and the state of each lane after it.
    pub(crate) fn row(&mut self, event: &str, states: Vec<State>) {
        assert_eq!(states.len(), self.lanes.len(), "{event}");
        self.rows.push((event.to_owned(), states));
    }
}

const WIDTH: usize = 860;
const EDGE: usize = 16;
const FONT_SIZE: u8 = 13;
const LINE: usize = 18;
/// The width of the column of events.
const EVENTS: usize = 316;
/// The space above and below the text of a row, and beside that of a lane.
const PAD: usize = 6;

/// The colours. The words say what the colours show.
const STYLE: &str = "<style>\n\
    .page { fill: #ffffff } text { fill: #1f2328 } .note { fill: #59636e } .head { font-weight: bold } .rule { fill: #d1d9e0 }\n\
    .holds { fill: #aee5b9 } .waits { fill: #fbe6a2 } .asked { fill: #ffc895 } .killed { fill: #f7b6b2 }\n\
    @media (prefers-color-scheme: dark) {\n\
    .page { fill: #161b22 } text { fill: #e6edf3 } .note { fill: #9da7b1 } .rule { fill: #3d444d }\n\
    .holds { fill: #1d5c31 } .waits { fill: #5e4b0c } .asked { fill: #78400f } .killed { fill: #792b2b }\n\
    }\n\
    </style>\n";

/// Draws charts below one another.
pub(crate) fn draw(charts: &[Chart]) -> String {
    let height = charts.iter().map(Placed::of).map(|placed| placed.height() + EDGE).sum::<usize>() + EDGE;
    let head = format!("{STYLE}<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n");
    let mut svg = Svg::new((WIDTH, height), FONT_SIZE, &head, "");
    let mut top = EDGE;
    for chart in charts {
        let placed = Placed::of(chart);
        placed.draw(&mut svg, top);
        top += placed.height() + EDGE;
    }
    svg.end()
}

/// Returns the charts as text.
pub(crate) fn text(charts: &[Chart]) -> String {
    let mut text = String::new();
    for chart in charts {
        _ = writeln!(text, "{}: {}", chart.heading, chart.lanes.join(" | ").replace('\n', " "));
        for (event, states) in &chart.rows {
            let states: Vec<_> = states.iter().map(|state| state.drawn().0.replace('\n', ", ")).collect();
            _ = writeln!(text, "  {event}: {}", states.join(" | "));
        }
    }
    text
}

/// A chart whose texts are broken into lines.
struct Placed<'c> {
    heading: &'c str,
    lane_width: usize,
    lanes: Vec<Vec<String>>,
    rows: Vec<PlacedRow<'c>>,
}

struct PlacedRow<'c> {
    event: Vec<String>,
    /// The words of each lane; none if they are those of the row above.
    words: Vec<Vec<String>>,
    states: &'c [State],
}

impl PlacedRow<'_> {
    fn height(&self) -> usize {
        self.words.iter().chain([&self.event]).map(Vec::len).max().unwrap_or(0) * LINE + 2 * PAD
    }
}

impl<'c> Placed<'c> {
    fn of(chart: &'c Chart) -> Self {
        let lane_width = (WIDTH - 2 * EDGE - EVENTS) / chart.lanes.len();
        let lanes = chart.lanes.iter().map(|lane| broken(lane, lane_width - 3 * PAD)).collect();
        let mut rows: Vec<PlacedRow<'c>> = Vec::new();
        for (event, states) in &chart.rows {
            let above = rows.last().map_or(&[][..], |row| row.states);
            let words = states.iter().enumerate().map(|(lane, state)| match state.drawn() {
                _ if above.get(lane) == Some(state) => Vec::new(),
                (words, _) => broken(words, lane_width - 3 * PAD),
            });
            rows.push(PlacedRow { event: broken(event, EVENTS - 2 * PAD), words: words.collect(), states });
        }
        Placed { heading: &chart.heading, lane_width, lanes, rows }
    }

    fn head(&self) -> usize {
        self.lanes.iter().map(Vec::len).max().unwrap_or(0).max(1) * LINE + PAD
    }

    fn height(&self) -> usize {
        LINE + PAD + self.head() + self.rows.iter().map(PlacedRow::height).sum::<usize>()
    }

    fn lane(&self, lane: usize) -> usize {
        EDGE + EVENTS + lane * self.lane_width
    }

    fn draw(&self, svg: &mut Svg, top: usize) {
        svg.line((EDGE, top + FONT_SIZE as usize), " class=\"head\"", self.heading);
        let mut y = top + LINE + PAD;
        for (lane, name) in self.lanes.iter().enumerate() {
            lines(svg, (self.lane(lane) + PAD, y), " class=\"note\"", name);
        }
        y += self.head();
        let tops = self.rows.iter().scan(y, |y, row| {
            let top = *y;
            *y += row.height();
            Some(top)
        });
        let tops: Vec<_> = tops.chain([y + self.rows.iter().map(PlacedRow::height).sum::<usize>()]).collect();
        for row in &tops[..self.rows.len()] {
            svg.bar((EDGE, *row), (WIDTH - 2 * EDGE, 1), "rule");
        }
        for lane in 0..self.lanes.len() {
            let mut first = 0;
            while first < self.rows.len() {
                let state = &self.rows[first].states[lane];
                let same = self.rows[first..].iter().take_while(|row| row.states[lane] == *state).count();
                if let (_, Some(class)) = state.drawn() {
                    let (top, bottom) = (tops[first] + 2, tops[first + same] - 1);
                    svg.bar((self.lane(lane), top), (self.lane_width - PAD, bottom - top), class);
                }
                first += same;
            }
        }
        for (row, top) in self.rows.iter().zip(&tops) {
            lines(svg, (EDGE, top + PAD), "", &row.event);
            for (lane, (words, state)) in row.words.iter().zip(row.states).enumerate() {
                let class = if state.drawn().1.is_none() { " class=\"note\"" } else { "" };
                lines(svg, (self.lane(lane) + PAD, top + PAD), class, words);
            }
        }
    }
}

fn lines(svg: &mut Svg, (x, y): (usize, usize), class: &str, lines: &[String]) {
    for (number, line) in lines.iter().enumerate() {
        svg.line((x, y + number * LINE + FONT_SIZE as usize), class, line);
    }
}

/// Breaks a text into lines of at most this width, at spaces.
fn broken(text: &str, width: usize) -> Vec<String> {
    let letters = (width as f64 / letter(FONT_SIZE)) as usize;
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            assert!(word.chars().count() <= letters, "{word:?} does not fit into {letters} letters");
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > letters {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}
