//! The scene on a terminal: the queues and the clients at the top, the events below.

use std::io::IsTerminal;

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use tokio::sync::watch;

use crate::scene::{Doing, Scene};

/// How often the keyboard is polled. The terminal library has no other way.
const KEYS: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns whether there is a terminal to draw on.
pub fn is_possible() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Prints one line for each event until the scene ends.
pub async fn print(mut scene: watch::Receiver<Scene>) {
    let mut printed = 0;
    loop {
        let ended = {
            let scene = scene.borrow_and_update();
            for line in &scene.lines[printed..] {
                if line.headline {
                    println!("\n{}", line.text);
                } else {
                    println!("{:7.3}  {}", line.at.as_secs_f64(), line.text);
                }
            }
            printed = scene.lines.len();
            scene.ended
        };
        if ended || scene.changed().await.is_err() {
            break;
        }
    }
}

/// Draws until the user presses q. It blocks, so run it on a separate thread.
///
/// # Errors
/// The terminal fails.
pub fn draw(mut scene: watch::Receiver<Scene>) -> std::io::Result<()> {
    let mut terminal = ratatui::init();
    let done = drawing(&mut terminal, &mut scene);
    ratatui::restore();
    done
}

fn drawing(terminal: &mut DefaultTerminal, scene: &mut watch::Receiver<Scene>) -> std::io::Result<()> {
    loop {
        terminal.draw(|frame| whole(frame, &scene.borrow_and_update()))?;
        if poll(KEYS)?
            && let Event::Key(key) = read()?
        {
            let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
        }
    }
}

/// Draws the whole picture.
fn whole(frame: &mut Frame<'_>, scene: &Scene) {
    let tall = u16::try_from(scene.queues.len().max(scene.clients.len())).unwrap_or(u16::MAX).clamp(3, 12) + 3;
    let [top, below] = Layout::vertical([Constraint::Length(tall), Constraint::Min(3)]).areas(frame.area());
    let [left, right] = Layout::horizontal([Constraint::Percentage(60), Constraint::Percentage(40)]).areas(top);

    let queues = scene.queues.iter().map(|(article, queue)| {
        let holder = queue.holder.as_ref().map_or_else(String::new, |standing| standing.who.clone());
        let waiters: Vec<String> =
            queue.waiters.iter().map(|standing| format!("{} {}", &standing.node[..1], standing.who)).collect();
        Row::new([
            Line::from(article.as_str()),
            Line::styled(holder, Style::new().fg(Color::Green)),
            Line::styled(waiters.join(", "), Style::new().fg(Color::Yellow)),
        ])
    });
    let widths = [Constraint::Length(9), Constraint::Length(14), Constraint::Fill(1)];
    let table = Table::new(queues, widths)
        .header(Row::new(["article", "runs", "waits, the next first"]).style(Style::new().add_modifier(Modifier::DIM)))
        .block(Block::bordered().title(" locks, as the server reports them "));
    frame.render_widget(table, left);

    let clients = scene.clients.iter().map(|(who, client)| {
        let (text, colour) = match &client.doing {
            Doing::Starts => ("starts".to_owned(), Color::Reset),
            Doing::Waits => ("waits".to_owned(), Color::Yellow),
            Doing::Runs(token) => (format!("runs, token {token}"), Color::Green),
            Doing::Retries(attempt) => (format!("tries again, attempt {attempt}"), Color::Magenta),
            Doing::Paused => ("stopped".to_owned(), Color::Cyan),
            Doing::Done(revision) => (format!("done, revision {revision}"), Color::Blue),
            Doing::GaveUp => ("gave up: dead letter".to_owned(), Color::Red),
            Doing::Dead => ("dead".to_owned(), Color::Red),
        };
        Row::new([Line::from(who.as_str()), Line::from(client.article.as_str()), Line::styled(text, colour)])
    });
    let widths = [Constraint::Length(14), Constraint::Length(8), Constraint::Fill(1)];
    frame.render_widget(Table::new(clients, widths).block(Block::bordered().title(" clients ")), right);

    let room = usize::from(below.height.saturating_sub(2));
    let lines: Vec<Line<'_>> = scene.lines[scene.lines.len().saturating_sub(room)..]
        .iter()
        .map(|line| match line.headline {
            true => Line::styled(line.text.as_str(), Style::new().add_modifier(Modifier::BOLD)),
            false => Line::from(vec![
                Span::styled(format!("{:7.3}  ", line.at.as_secs_f64()), Style::new().add_modifier(Modifier::DIM)),
                Span::raw(line.text.as_str()),
            ]),
        })
        .collect();
    let title = if scene.ended { " what happened: over, q ends " } else { " what happens; q ends " };
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), below);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::scene::{Queue, Standing};
    use crate::work::{Class, Report};

    #[test]
    fn the_picture_shows_holder_and_waiters() {
        let mut scene = Scene::default();
        scene.headline("Scenario 3");
        scene.enters("client 1", "P3");
        scene.report("client 1", &Report::Asks { class: Class::Foreground });
        scene.report("client 1", &Report::Runs { token: 12 });
        let standing = |who: &str, node: &str| Standing { who: who.into(), node: node.into() };
        let queue = Queue {
            holder: Some(standing("client 1", "A-0000000000")),
            waiters: vec![standing("client 3", "A-0000000003"), standing("client 2", "B-0000000002")],
        };
        scene.queues.insert("P3".into(), queue);
        let mut terminal = Terminal::new(TestBackend::new(100, 20)).unwrap();
        terminal.draw(|frame| whole(frame, &scene)).unwrap();
        let drawn = terminal.backend().to_string();
        for part in ["P3        client 1       A client 3, B client 2", "runs, token 12", "Scenario 3", "q ends"] {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
    }
}
