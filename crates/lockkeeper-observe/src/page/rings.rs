//! A ring of waits as a picture: its contenders below each other, an arrow from each to the one that it waits for.

use lockkeeper_session::text::plain;
use maud::{Markup, html};

use crate::deadlock::{Deadlock, Party};

/// A longer ring is only a sentence.
const PARTIES: usize = 16;

/// Maximum characters of a name in the picture. Its title has all of them.
const NAME: usize = 34;

const WIDTH: usize = 360;
const BOX: usize = 44;
const STEP: usize = 84;
/// The left end of the boxes. The arrow from the last to the first one is beside them.
const LEFT: usize = 34;
const RIGHT: usize = 352;
/// Where the arrows between them are.
const ARROW: usize = LEFT + 24;

/// Draws a ring; `None` if it has too many contenders. `number` tells the pictures of a page apart.
pub(super) fn drawn(deadlock: &Deadlock, number: usize) -> Option<Markup> {
    let ring = &deadlock.ring;
    if ring.is_empty() || ring.len() > PARTIES {
        return None;
    }
    let height = STEP * (ring.len() - 1) + BOX + 32;
    let (last, first) = (STEP * (ring.len() - 1) + BOX / 2 + 4, BOX / 2 + 4);
    let marker = format!("arrow-{number}");
    let end = format!("url(#{marker})");
    Some(html! {
        svg.ring viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-labelledby=(format!("ring-{number}")) {
            title id=(format!("ring-{number}")) { "Who waits for whom: " (plain(&deadlock.to_string())) }
            defs {
                marker id=(marker) viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto" {
                    path.tip d="M0 0L10 5L0 10z" {}
                }
            }
            @for (at, party) in ring.iter().enumerate() {
                (contender(party, STEP * at + 4))
                @let below = STEP * at + 4 + BOX;
                @if at + 1 < ring.len() {
                    path.edge d=(format!("M{ARROW} {below}V{}", below + STEP - BOX - 1)) marker-end=(end) {}
                    text.wait x=(ARROW + 10) y=(below + 24) { (waits(party, &ring[at + 1])) }
                } @else {
                    path.edge d=(format!("M{LEFT} {last}H12V{first}H{}", LEFT - 1)) marker-end=(end) {}
                    text.wait x="12" y=(below + 18) { (waits(party, &ring[0])) }
                }
            }
        }
    })
}

fn contender(party: &Party, top: usize) -> Markup {
    let who = plain(&party.holds.as_ref().unwrap_or(&party.waits).contender.described);
    let holds = match &party.holds {
        Some(held) => format!("holds {}", plain(&held.path)),
        None => "waits ahead of it".to_owned(),
    };
    html! {
        g {
            title { (who) ", " (holds) }
            rect.party x=(LEFT) y=(top) width=(RIGHT - LEFT) height=(BOX) rx="5" {}
            text.who x=(LEFT + 10) y=(top + 18) { (cut(&who)) }
            text.holds x=(LEFT + 10) y=(top + 35) { (cut(&holds)) }
        }
    }
}

/// The label of the arrow from a contender to the next one.
fn waits(party: &Party, next: &Party) -> String {
    let path = plain(&party.waits.path);
    match next.holds {
        Some(_) => cut(&format!("waits for {path}")),
        None => cut(&format!("waits behind it for {path}")),
    }
}

/// The begin of a text, and its end, which tells paths and processes apart.
fn cut(text: &str) -> String {
    let chars: Vec<_> = text.chars().collect();
    if chars.len() <= NAME {
        return text.to_owned();
    }
    let half = (NAME - 1) / 2;
    chars[..half].iter().chain(['…'].iter()).chain(&chars[chars.len() - half..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        let text = "holds /locks/a/very/long/path/to/a/lock/nightly";
        assert_eq!(cut(text), "holds /locks/a/v…o/a/lock/nightly");
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(100)).chars().count(), NAME - 1);
    }
}
