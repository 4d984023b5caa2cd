//! Runs the catalogue: `cargo run -p catalogue` plays the scenarios, `serve` runs the service.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use catalogue::actor::{Actor, Places};
use catalogue::api::Service;
use catalogue::picture;
use catalogue::scenarios::Scenario;
use catalogue::stage::Stage;
use clap::{Args, Parser, Subcommand};

/// A catalogue with many writers, under locks and with a shelf that refuses stale writes.
///
/// Needs no other software: it uses an embedded lock server and a file for the articles, and deletes both at the end.
#[derive(Debug, Parser)]
#[command(name = "catalogue", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    play: Play,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plays the scenarios with real processes and shows them (the default).
    Play(Play),
    /// Serves HTTP, with workers in the background, until Ctrl-C.
    Serve(Serve),
    /// Runs one client; the other commands start it.
    #[command(hide = true)]
    Client {
        #[command(flatten)]
        places: Places,
        #[command(flatten)]
        actor: Actor,
    },
}

#[derive(Debug, Args)]
struct Play {
    #[command(flatten)]
    places: Places,
    /// Prints lines instead of drawing a picture (the default without a terminal).
    #[arg(long)]
    plain: bool,
    /// The scenarios to play (default: all).
    #[arg(value_enum, value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
}

#[derive(Debug, Args)]
struct Serve {
    #[command(flatten)]
    places: Places,
    /// Prints lines instead of drawing a picture.
    #[arg(long)]
    plain: bool,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// How many workers.
    #[arg(long, default_value_t = 4)]
    workers: u32,
    /// Maximum retries of background work.
    #[arg(long, default_value_t = 5)]
    retries: u32,
    /// Duration of each change.
    #[arg(long, default_value = "200ms", value_parser = humantime::parse_duration)]
    takes: Duration,
}

/// Puts locks, letters and articles into a temporary directory, unless an option names another place. Dropping the result deletes
/// the directory.
fn complete(places: &mut Places) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("lockkeeper-catalogue-").tempdir().context("making a directory")?;
    let inside = |name: &str| dir.path().join(name).display().to_string();
    if places.servers.is_none() && places.locks.is_none() {
        places.locks = Some(inside("locks"));
    }
    if places.letters.is_none() {
        places.letters = Some(dir.path().join("dead-letters.jsonl"));
    }
    if places.shelf.is_none() {
        places.shelf = Some(inside("articles.sqlite"));
    }
    Ok(dir)
}

async fn play(mut options: Play) -> Result<()> {
    let _dir = complete(&mut options.places)?;
    let place = options.places.steady().open("catalogue").await?;
    let stage = Stage::new(options.places, place.keeper.clone());
    let scenarios = if options.scenarios.is_empty() { Scenario::ALL.to_vec() } else { options.scenarios };

    let scene = stage.watch();
    let playing = async {
        for scenario in scenarios {
            stage.follow(scenario.article());
            scenario.play(&stage, &place.shelf).await?;
            stage.settle().await;
        }
        Ok(())
    };
    let played: Result<()> = if options.plain || !picture::is_possible() {
        let printing = tokio::spawn(picture::print(scene));
        let played = playing.await;
        stage.change(|scene| scene.ended = true);
        printing.await?;
        played
    } else {
        let mut drawing = tokio::task::spawn_blocking(|| picture::draw(scene));
        tokio::select! {
            played = playing => {
                stage.change(|scene| scene.ended = true);
                drawing.await??;
                played
            }
            drawn = &mut drawing => Ok(drawn??),
        }
    };
    stage.clear().await;
    place.keeper.close().await;
    played
}

async fn serve(mut options: Serve) -> Result<()> {
    let _dir = complete(&mut options.places)?;
    let place = options.places.open("catalogue").await?;
    let keeper = place.keeper.clone();
    let stage = Stage::new(options.places, keeper.clone());
    let service = Service::new(place, stage.clone(), options.retries, options.takes);
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listening on {}", options.listen))?;
    let address = listener.local_addr().context("asking for the address")?;
    let mut workers = tokio::task::JoinSet::new();
    for number in 1..=options.workers {
        workers.spawn(service.clone().worker(number));
    }
    stage.change(|scene| {
        scene.headline(&format!("http://{address}"));
        scene.say(format!("save one:       curl -X PUT -d 'A blue one' http://{address}/articles/P1/title"));
        scene.say(format!("propagate:      curl -X POST -d 9.90 http://{address}/propagate/price"));
        scene.say(format!("look at all:    curl http://{address}/articles"));
    });
    let scene = stage.watch();
    let showing = async {
        if options.plain || !picture::is_possible() {
            picture::print(scene).await;
            Ok(())
        } else {
            tokio::task::spawn_blocking(|| picture::draw(scene)).await?.context("drawing")
        }
    };
    let serving = axum::serve(listener, service.router());
    let served = tokio::select! {
        served = serving => served.context("serving"),
        shown = showing => shown,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("listening for Ctrl-C"),
    };
    workers.shutdown().await;
    stage.clear().await;
    keeper.close().await;
    served
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: making an event loop: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match arguments.command.unwrap_or(Command::Play(arguments.play)) {
            Command::Play(options) => play(options).await,
            Command::Serve(options) => serve(options).await,
            Command::Client { places, actor } => actor.run(&places).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_make_sense() {
        Arguments::command().debug_assert();
    }
}
