//! The stage: starts clients as separate processes, follows the locks, and keeps the scene.
//!
//! It reads the locks from the lock server, not from the clients. Clients never outlive it.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::actor::{Actor, Places};
use crate::scene::{Doing, Scene};
use crate::work::{Report, with_causes};

/// A client's process.
#[derive(Debug)]
struct Running {
    pid: Pid,
    /// Its standard input. The client works until this ends.
    input: Option<ChildStdin>,
}

/// Starts clients and shows the scene.
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
    /// Makes an empty stage for these locks and articles.
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

    /// Returns the scene, now and after each change.
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
            let mut follow = stage.keeper.admin().follow(format!("/{article}"));
            let mut scene = stage.watch();
            loop {
                match follow.next().await {
                    Ok(info) => stage.change(|scene| scene.queue(&article, &info)),
                    // The first client creates the lock, and reports something when it runs.
                    Err(AdminError::NoSuchLock { .. }) => {
                        if scene.changed().await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        stage.change(|scene| scene.say(format!("  /{article}: {}", with_causes(&error))));
                        break;
                    }
                }
            }
        });
    }

    /// Starts a client and reads its reports until it ends. Dropping the stage kills it.
    ///
    /// # Errors
    /// The client cannot be started.
    pub fn start(&self, actor: &Actor) -> Result<()> {
        self.start_at(&self.places.steady(), actor)
    }

    /// Starts a client with a short session timeout, so that a scenario can show its expiry.
    ///
    /// # Errors
    /// The client cannot be started.
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
                if let Ok(report) = serde_json::from_str::<Report>(&line) {
                    stage.change(|scene| scene.report(&who, &report));
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
            // Remove it now: another process may have its process id from here on.
            stage.running().remove(&who);
            let through =
                |client: &crate::scene::Client| matches!(client.doing, Doing::Done(_) | Doing::GaveUp | Doing::Dead);
            if !stage.scene.borrow().clients.get(&who).is_none_or(through) {
                stage.change(|scene| scene.does(&who, Doing::Dead, &format!("has ended{why}")));
            }
        });
        Ok(())
    }

    /// Ends the work of a client.
    ///
    /// # Errors
    /// The client does not run.
    pub fn finish(&self, who: &str) -> Result<()> {
        let mut running = self.running();
        let Some(client) = running.get_mut(who) else { bail!("{who} does not run") };
        drop(client.input.take());
        Ok(())
    }

    /// Stops a client's whole process, as the suspend of a machine does.
    ///
    /// # Errors
    /// The client does not run.
    pub fn pause(&self, who: &str) -> Result<()> {
        self.signal(who, Signal::STOP)?;
        self.change(|scene| scene.does(who, Doing::Paused, "is stopped, and notices nothing"));
        Ok(())
    }

    /// Continues a stopped client.
    ///
    /// # Errors
    /// The client does not run.
    pub fn resume(&self, who: &str) -> Result<()> {
        self.change(|scene| scene.does(who, Doing::Starts, "goes on where it was"));
        self.signal(who, Signal::CONT)
    }

    /// Kills a client, so that it cannot clean up.
    ///
    /// # Errors
    /// The client does not run.
    pub fn kill(&self, who: &str) -> Result<()> {
        self.change(|scene| scene.does(who, Doing::Dead, "is killed"));
        self.signal(who, Signal::KILL)
    }

    fn signal(&self, who: &str, signal: Signal) -> Result<()> {
        // Keep the lock meanwhile, so that the process id still belongs to the client.
        let running = self.running();
        let Some(client) = running.get(who) else { bail!("{who} does not run") };
        kill_process(client.pid, signal).with_context(|| format!("signalling {who}"))
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every client has ended, so that its name can be used again.
    pub async fn settle(&self) {
        let mut clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        while clients.join_next().await.is_some() {}
    }

    /// Ends all clients that still run, and stops following locks.
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
