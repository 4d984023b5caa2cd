//! The stage: starts clients as processes of their own, follows the locks, and keeps the scene.
//!
//! What it says of the locks it has from the lock server, not from the clients. Clients never outlive it.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use lockkeeper::{Error, Lockkeeper};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::actor::{Actor, Places};
use crate::scene::{Doing, Scene};
use crate::work::{Told, said};

/// A client's process.
#[derive(Debug)]
struct Running {
    pid: Pid,
    /// What it waits for the end of, while it works.
    input: Option<ChildStdin>,
}

/// Whoever has it may start clients and look at the scene.
#[derive(Clone, Debug)]
pub struct Stage {
    scene: Arc<watch::Sender<Scene>>,
    places: Places,
    keeper: Lockkeeper,
    running: Arc<Mutex<HashMap<String, Running>>>,
    followers: Arc<Mutex<JoinSet<()>>>,
    clients: Arc<Mutex<JoinSet<()>>>,
}

impl Stage {
    /// An empty one, over these locks and articles.
    pub fn new(places: Places, keeper: Lockkeeper) -> Self {
        Stage {
            scene: Arc::new(watch::Sender::new(Scene::default())),
            places,
            keeper,
            running: Arc::default(),
            followers: Arc::default(),
            clients: Arc::default(),
        }
    }

    /// What there is to see, now and after each change.
    pub fn watch(&self) -> watch::Receiver<Scene> {
        self.scene.subscribe()
    }

    /// Changes the scene.
    pub fn change(&self, change: impl FnOnce(&mut Scene)) {
        self.scene.send_modify(change);
    }

    /// Shows this article's lock from now on.
    pub fn follow(&self, article: &str) {
        let (stage, article) = (self.clone(), article.to_owned());
        spawn(&self.followers, async move {
            let mut follow = stage.keeper.admin().follow(&format!("/{article}"));
            let mut scene = stage.watch();
            loop {
                match follow.next().await {
                    Ok(info) => stage.change(|scene| scene.queue(&article, &info)),
                    // The first client makes it, and says something when it runs.
                    Err(Error::NoSuchLock { .. }) => {
                        if scene.changed().await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        stage.change(|scene| scene.say(format!("  /{article}: {}", said(&error))));
                        break;
                    }
                }
            }
        });
    }

    /// Starts a client. It is heard until it ends, and killed if the stage goes first.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, actor: &Actor) -> Result<()> {
        self.start_at(&self.places.steady(), actor)
    }

    /// Starts one whose session will expire, soon enough to watch.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_mortal(&self, actor: &Actor) -> Result<()> {
        self.start_at(&self.places, actor)
    }

    fn start_at(&self, places: &Places, actor: &Actor) -> Result<()> {
        let who = actor.name.clone();
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.arg("client").args(places.arguments()).args(actor.arguments());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("starting a client")?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("it has no id")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("it has no output")?;
        let errors = child.stderr.take().context("it has no output for errors")?;
        self.running().insert(who.clone(), Running { pid, input });
        self.change(|scene| scene.enters(&who, &actor.article));
        let stage = self.clone();
        spawn(&self.clients, async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(told) = serde_json::from_str::<Told>(&line) {
                    stage.change(|scene| scene.told(&who, &told));
                }
            }
            let mut why = String::new();
            let mut lines = BufReader::new(errors).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if why.is_empty() {
                    why = format!(": {line}");
                }
            }
            drop(child.wait().await);
            // Before it is forgotten: its id may be another's now.
            stage.running().remove(&who);
            let through =
                |client: &crate::scene::Client| matches!(client.doing, Doing::Done(_) | Doing::GaveUp | Doing::Dead);
            if !stage.scene.borrow().clients.get(&who).is_none_or(through) {
                stage.change(|scene| scene.does(&who, Doing::Dead, &format!("has ended{why}")));
            }
        });
        Ok(())
    }

    /// Tells a client to come to the end of its work.
    ///
    /// # Errors
    /// When it does not run.
    pub fn finish(&self, who: &str) -> Result<()> {
        let mut running = self.running();
        let Some(client) = running.get_mut(who) else { bail!("{who} does not run") };
        drop(client.input.take());
        Ok(())
    }

    /// Stops a client with all it has, as a machine does that is suspended.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, who: &str) -> Result<()> {
        self.signal(who, Signal::STOP)?;
        self.change(|scene| scene.does(who, Doing::Paused, "is stopped, and notices nothing"));
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, who: &str) -> Result<()> {
        self.change(|scene| scene.does(who, Doing::Starts, "goes on where it was"));
        self.signal(who, Signal::CONT)
    }

    /// Kills a client: nothing of it can be cleaned up by itself.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self, who: &str) -> Result<()> {
        self.change(|scene| scene.does(who, Doing::Dead, "is killed"));
        self.signal(who, Signal::KILL)
    }

    fn signal(&self, who: &str, signal: Signal) -> Result<()> {
        // Held meanwhile, so that the id is still its own.
        let running = self.running();
        let Some(client) = running.get(who) else { bail!("{who} does not run") };
        kill_process(client.pid, signal).with_context(|| format!("signalling {who}"))
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every client has ended, so that its name is free again.
    pub async fn settle(&self) {
        let mut clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        while clients.join_next().await.is_some() {}
    }

    /// Ends all clients that still run, and stops looking at locks.
    pub async fn clear(&self) {
        for tasks in [&self.clients, &self.followers] {
            let mut tasks = std::mem::take(&mut *tasks.lock().unwrap_or_else(PoisonError::into_inner));
            tasks.shutdown().await;
        }
    }
}

fn spawn(tasks: &Mutex<JoinSet<()>>, task: impl Future<Output = ()> + Send + 'static) {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
}
