//! The scenarios of several clients that change one article: three orders of service, a killed holder, a paused holder, and a starving worker.
//!
//! Each scenario waits for what it shows, and fails if that does not happen. So a successful run has shown everything.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::timeout;

use crate::actor::Actor;
use crate::scene::{Doing, Scene};
use crate::shelf::Shelf;
use crate::stage::Stage;
use crate::work::Class;

/// How long a scenario waits for an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a picture stays, so that a person can read it.
const BEAT: Duration = Duration::from_millis(400);

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Two people save the same article.
    #[value(name = "1")]
    TwoPeople,
    /// Two bulk propagations change the same article.
    #[value(name = "2")]
    TwoWorkers,
    /// A person comes after a worker, and is served before it.
    #[value(name = "3")]
    PersonFirst,
    /// A holder is killed.
    Dies,
    /// A holder is stopped for longer than its session timeout, and writes when it continues.
    Pauses,
    /// A worker is never granted the lock, and gives up.
    Starves,
}

impl Scenario {
    /// All scenarios, in the order of play.
    pub const ALL: [Scenario; 6] = [
        Scenario::TwoPeople,
        Scenario::TwoWorkers,
        Scenario::PersonFirst,
        Scenario::Dies,
        Scenario::Pauses,
        Scenario::Starves,
    ];

    /// Returns the article of the scenario.
    pub const fn article(self) -> &'static str {
        match self {
            Scenario::TwoPeople => "P1",
            Scenario::TwoWorkers => "P2",
            Scenario::PersonFirst => "P3",
            Scenario::Dies => "P4",
            Scenario::Pauses => "P5",
            Scenario::Starves => "P6",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Scenario::TwoPeople => "Scenario 1: two people save the same article",
            Scenario::TwoWorkers => "Scenario 2: two bulk propagations meet on an article",
            Scenario::PersonFirst => "Scenario 3: a person comes last and is served before the background",
            Scenario::Dies => "A holder is killed: its session expires, and the next one runs",
            Scenario::Pauses => "A holder is stopped too long and writes late: the shelf refuses it",
            Scenario::Starves => "A worker is not granted the lock, tries again, and gives up with a dead letter",
        }
    }

    /// Plays the scenario and checks its outcome.
    ///
    /// # Errors
    /// An expected event did not happen, or the article was changed in another order.
    pub async fn play(self, stage: &Stage, shelf: &Shelf) -> Result<()> {
        stage.change(|scene| scene.headline(self.title()));
        let article = self.article();
        let already = shelf.get(article).await?.trail.len();
        let client = |n: u32, class: Class| Actor {
            name: format!("client {n}"),
            class,
            article: article.to_owned(),
            times: 1,
            // The scenario ends each client's work when the expected state is visible, however slow the machine is.
            takes: None,
            timeout: PATIENCE,
            retries: 3,
            unfenced: false,
        };
        let play = Play { stage, article };
        let served: &[&str] = match self {
            Scenario::TwoPeople | Scenario::TwoWorkers => {
                let class = if self == Scenario::TwoPeople { Class::Foreground } else { Class::Background };
                stage.start(&client(1, class))?;
                play.holds("client 1").await?;
                stage.start(&client(2, class))?;
                play.waits("client 2").await?;
                play.finish("client 1").await?;
                play.finishes("client 2").await?;
                &["client 1", "client 2"]
            }
            Scenario::PersonFirst => {
                stage.start(&client(1, Class::Foreground))?;
                play.holds("client 1").await?;
                stage.start(&client(2, Class::Background))?;
                play.waits("client 2").await?;
                stage.start(&client(3, Class::Foreground))?;
                play.waits("client 3").await?;
                play.finish("client 1").await?;
                play.finishes("client 3").await?;
                play.finishes("client 2").await?;
                &["client 1", "client 3", "client 2"]
            }
            Scenario::Dies => {
                stage.start_mortal(&client(1, Class::Background))?;
                play.holds("client 1").await?;
                stage.start(&client(2, Class::Foreground))?;
                play.waits("client 2").await?;
                stage.kill("client 1")?;
                play.finishes("client 2").await?;
                &["client 2"]
            }
            Scenario::Pauses => {
                stage.start_mortal(&client(1, Class::Background))?;
                play.runs("client 1").await?;
                stage.pause("client 1")?;
                stage.start(&client(2, Class::Foreground))?;
                play.finishes("client 2").await?;
                play.finish("client 1").await?;
                stage.resume("client 1")?;
                play.done("client 1").await?;
                let refused = |scene: &Scene| scene.lines.iter().any(|line| line.text.contains("refuses token"));
                play.until("a refusal by the shelf", refused).await?;
                &["client 2", "client 1"]
            }
            Scenario::Starves => {
                stage.start(&client(1, Class::Foreground))?;
                play.holds("client 1").await?;
                let short = Duration::from_millis(300);
                stage.start(&Actor { timeout: short, retries: 2, ..client(2, Class::Background) })?;
                play.until("client 2 giving up", |scene| doing(scene, "client 2", |d| *d == Doing::GaveUp)).await?;
                let kept = |scene: &Scene| scene.lines.iter().any(|line| line.text.contains("dead letter in file:"));
                play.until("a dead letter", kept).await?;
                play.finish("client 1").await?;
                play.done("client 1").await?;
                &["client 1"]
            }
        };
        play.until("an empty queue", |scene| {
            scene.queues.get(article).is_some_and(|queue| queue.holder.is_none() && queue.waiters.is_empty())
        })
        .await?;
        let trail = shelf.get(article).await?.trail.split_off(already);
        let by: Vec<&str> = trail.iter().map(|step| step.by.as_str()).collect();
        ensure!(by == served, "{article} was changed by {by:?}, and it should have been {served:?}");
        ensure!(trail.is_sorted_by(|a, b| a.token < b.token), "{article} was changed out of order: {trail:?}");
        Ok(())
    }
}

struct Play<'a> {
    stage: &'a Stage,
    article: &'a str,
}

fn doing(scene: &Scene, who: &str, what: impl FnOnce(&Doing) -> bool) -> bool {
    scene.clients.get(who).is_some_and(|client| what(&client.doing))
}

impl Play<'_> {
    async fn until(&self, what: &str, there: impl FnMut(&Scene) -> bool) -> Result<()> {
        let mut scene = self.stage.watch();
        let came = timeout(PATIENCE, scene.wait_for(there)).await;
        ensure!(matches!(came, Ok(Ok(_))), "{what} did not happen on {}", self.article);
        Ok(())
    }

    /// Waits until the server reports the client as the holder.
    async fn holds(&self, who: &str) -> Result<()> {
        self.until(&format!("a hold of {who}"), |scene| {
            let queue = scene.queues.get(self.article);
            queue.and_then(|queue| queue.holder.as_ref()).is_some_and(|holder| holder.who == who)
        })
        .await
    }

    /// Waits until the client reports that it runs.
    async fn runs(&self, who: &str) -> Result<()> {
        self.until(&format!("{who} at work"), |scene| doing(scene, who, |d| matches!(d, Doing::Runs(_)))).await
    }

    /// Waits until the server reports the client as a waiter.
    async fn waits(&self, who: &str) -> Result<()> {
        self.until(&format!("{who} waiting"), |scene| {
            let queue = scene.queues.get(self.article);
            queue.is_some_and(|queue| queue.waiters.iter().any(|waiter| waiter.who == who))
        })
        .await
    }

    /// Ends the work of the client, after a moment for the viewer.
    async fn finish(&self, who: &str) -> Result<()> {
        tokio::time::sleep(BEAT).await;
        self.stage.finish(who)
    }

    /// Waits until the client runs, ends its work, and waits until it is done.
    async fn finishes(&self, who: &str) -> Result<()> {
        self.runs(who).await?;
        self.finish(who).await?;
        self.done(who).await
    }

    async fn done(&self, who: &str) -> Result<()> {
        self.until(&format!("{who} done"), |scene| doing(scene, who, |d| matches!(d, Doing::Done(_)))).await
    }
}
