//! The picture of the README, drawn from what the commands print. Hosts, pids, times and ages are replaced, because they differ each
//! time.

use anstream::adapter::strip_str;

use crate::harness::{Home, Running, Served, until};
use crate::pictures::{self, Svg, letter};
use crate::terminal::Screen;

const FONT_SIZE: u8 = 14;
const LINE: usize = 20;
const EDGE: usize = 16;
/// The columns of a terminal whose lines a page can show.
pub(crate) const COLUMNS: u16 = 104;

/// The colours of the page, of the text, and of what is typed.
const COLOURS: [(&str, [&str; 3]); 2] =
    [("light", ["#f6f8fa", "#1f2328", "#0550ae"]), ("dark", ["#161b22", "#c9d1d9", "#79c0ff"])];

/// Draws lines as a terminal shows them. Those with a prompt are typed.
fn draw(lines: &[String], [page, text, typed]: [&str; 3]) -> String {
    let width = (f64::from(COLUMNS) * letter(FONT_SIZE)).ceil() as usize + 2 * EDGE;
    let height = lines.len() * LINE + 2 * EDGE;
    let page = format!("<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{page}\"/>\n");
    let mut svg = Svg::new((width, height), FONT_SIZE, &page, &format!(" fill=\"{text}\""));
    let typed = format!(" fill=\"{typed}\" font-weight=\"bold\"");
    for (row, line) in lines.iter().enumerate() {
        let attributes = if line.contains("$ lockkeeper ") { typed.as_str() } else { "" };
        svg.line((EDGE, EDGE + (row + 1) * LINE - 6), attributes, line);
    }
    svg.end()
}

/// Compares what a terminal shows with the two pictures of this name.
pub(crate) fn compare(name: &str, lines: &[String]) {
    for (colours, of) in COLOURS {
        pictures::compare(&format!("{name}-{colours}"), &draw(lines, of), &lines.join("\n"));
    }
}

/// Returns the lines that a command on a terminal shows.
pub(crate) fn shown(home: &Home, servers: &str, typed: &str) -> Vec<String> {
    let arguments = typed.strip_prefix("lockkeeper").unwrap();
    let line = format!("LOCKKEEPER_SERVERS={servers}; export LOCKKEEPER_SERVERS; \"$lockkeeper\"{arguments}");
    let shown = Screen::with_columns(COLUMNS, home, "sh", &["-c", &line]).rest();
    let text = strip_str(&shown).to_string();
    let lines = text.lines().flat_map(|line| {
        // A terminal breaks a longer line, which the command leaves whole, so that it can be copied.
        let letters: Vec<_> = line.trim_end().chars().collect();
        let parts = letters.chunks(usize::from(COLUMNS)).map(|part| part.iter().collect()).collect::<Vec<String>>();
        if parts.is_empty() { vec![String::new()] } else { parts }
    });
    lines.collect()
}

/// Replaces what is between two texts, wherever they are in one line.
fn between(line: &str, begin: &str, end: &str, with: &str) -> String {
    let found = line.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    found.map_or_else(|| line.to_owned(), |(before, after)| format!("{before}{begin}{with}{end}{after}"))
}

#[test]
fn the_picture_of_the_readme_shows_what_a_terminal_shows() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    home.script("job.sh", "echo up; cat");
    let start = |more: &[&str]| {
        let words = [&["run", "nightly"], more, &["--", "./job.sh"]].concat();
        Running::start(&mut home.command(&words))
    };
    let mut holder = start(&["-m", "nightly index"]);
    assert_eq!(holder.line(), "up");
    let mut waiter = start(&["-m", "by hand", "--quiet"]);
    until("it waits", || home.count("nightly") == (1, 1));
    // Before that, no node says since when it holds the lock.
    until("its grant is written", || !home.show("nightly")["holders"][0]["granted"].is_null());

    let lock = home.show("nightly");
    let person = |list: &str| {
        let contender = &lock[list][0];
        let [user, host] = ["user", "host"].map(|name| contender[name].as_str().unwrap());
        format!("{user}@{host} (pid {})", contender["pid"])
    };
    let (first, second) = (person("holders"), person("waiters"));
    let steady = |line: &str| {
        let line = line.replace(&first, "ops@db1 (pid 4711)").replace(&second, "ops@db2 (pid 1203)");
        let (since, age) = if line.contains("db1") { ("02:13:05", "94 s") } else { ("02:14:31", "8 s") };
        let line = match line.split_once("since ") {
            Some((before, rest)) => {
                format!("{before}since {since}{}", between(&rest[since.len()..], ", ", " ago", age))
            }
            None => line,
        };
        let line = between(&line, "its ", " processes", "2");
        between(&line, "on this machine, ", " of processor time", "running, with 61 s")
    };
    let mut lines = vec![
        "db1$ lockkeeper run nightly --message 'nightly index' -- ./job.sh &".to_owned(),
        "db2$ lockkeeper run nightly --message 'by hand' --quiet -- ./job.sh &".to_owned(),
    ];
    for typed in ["lockkeeper run nightly --try -- ./job.sh", "lockkeeper why nightly"] {
        lines.push(format!("db1$ {typed}"));
        lines.extend(shown(&home, &served.address, typed).iter().map(|line| steady(line)));
    }
    for run in [&mut holder, &mut waiter] {
        run.finish();
    }
    compare("first", &lines);
}
