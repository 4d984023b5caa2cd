//! `lockkeeper serve`: the embedded server in the foreground, for any ZooKeeper client of the machine.

pub(crate) mod args;

use std::path::{Path, PathBuf};

use lockkeeper::embedded::{RunningServer, ServerDir, server_config};
use lockkeeper_config::settings::Key;
use lockkeeper_server::{Accounts, Secret, Server, Storage, Tls, raise_descriptor_limit};
use lockkeeper_session::process::read_credentials;

pub(crate) use self::args::ServeArgs;
use crate::advice;
use crate::args::connect::ConnectArgs;
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::registers;
use crate::service::{self, NotifyState};
use crate::settings::{self, Settings};
use crate::signals::{ENDING, Signals};
use crate::streams;
use crate::verb::{Context, Verb};

impl Verb for ServeArgs {
    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        serve(self, context.printer).await
    }
}

/// Serves until a signal ends it; returns the exit status.
async fn serve(args: ServeArgs, printer: &Printer) -> Result<u8, Failure> {
    let mut signals = Signals::default();
    signals.add(ENDING)?;
    if let Some(dir) = &args.machine {
        return serve_machine(&ServerDir::shared(dir), &args, signals, printer).await;
    }
    let storage = match (args.memory, args.data) {
        (true, _) => Storage::Memory,
        (false, Some(dir)) => Storage::Directory(dir),
        (false, None) => Storage::Directory(own_dir(args.state_dir.clone(), printer)?.join("serve")),
    };
    // This user's commands find their own server by its socket, so it also serves that.
    let own = match &storage {
        Storage::Directory(dir) if dir.ends_with("data") => own_dir(args.state_dir, printer).ok().filter(|own| {
            let real = |dir: &Path| dir.canonicalize().ok();
            real(&own.join("data")).is_some_and(|data| Some(data) == real(dir))
        }),
        _ => None,
    };
    let data = match &storage {
        Storage::Directory(dir) => format!("its data is in {}", dir.display()),
        _ => "its data is in memory only: a restart starts empty".to_owned(),
    };
    let accounts = args.accounts.map_or_else(|| Ok(Accounts::default()), |file| read_accounts(&file))?;
    let mut config = server_config()
        .with_accounts(accounts)
        .with_listen(args.listen)
        .allow_remote(args.allow_remote)
        .with_storage(storage)
        .with_first_zxid(args.first_zxid);
    config = args.limits.apply(config).with_admin_hosts(args.admin_host).with_words(args.words.unwrap_or_default());
    config.admin = args.admin;
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let (certificate, key) = (read(certificate)?, read_private(key)?.into_bytes());
        config = config.with_tls(match &args.tls_client_ca {
            None => Tls::from_pem(&certificate, &key)?,
            Some(authorities) => Tls::mutual(&certificate, &key, &read(authorities)?)?,
        });
    }
    if let Some(file) = &args.secret_file {
        config = config.with_secret(read_secret(file)?);
    }
    let everyone = args.secret_file.is_none() && args.tls_client_ca.is_none();
    raise_descriptor_limit();
    let served = match own {
        None => Served::Alone(Server::start(config).await?),
        Some(dir) => {
            let home = ServerDir::new(dir);
            let served = Served::Directory(home.host_with(config, &registers::all()).await?);
            let open = if everyone { "; every user of this machine can use its port" } else { "" };
            printer.note(&format!("also serving this user's own server in {}{open}", home.dir().display()));
            served
        }
    };
    let server = served.server();
    // The only line of data: the address for clients.
    streams::STDOUT.push(format!("{}\n", server.connect_string()));
    printer.note(&format!("serving on {}; {data}", server.connect_string()));
    if let Some(admin) = server.admin_addr() {
        printer.note(&format!("operators' HTTP is on http://{admin}/commands"));
    }
    if everyone && !server.addr().ip().is_loopback() {
        let more = if args.tls_cert.is_some() { "TLS encrypts, but it does not say who connects" } else { "no TLS" };
        printer.note(&format!(
            "everyone who can reach {} may read, change and delete everything ({more}): admit only some with --secret-file \
             or --tls-client-ca",
            server.addr()
        ));
    }
    if args.secret_file.is_some() && args.tls_cert.is_none() && !server.addr().ip().is_loopback() {
        printer.note(
            "clients send the secret over the network in clear (no TLS): who reads the network learns it; add --tls-cert and \
             --tls-key",
        );
    }
    printer.note("this is one server on one machine, not an ensemble: if its disk is lost, so are its locks");
    service::tell(&[NotifyState::Ready], printer);
    tokio::select! {
        error = server.stopped() => {
            let message = format!("the server has stopped: {error}");
            Err(Failure::new(Code::Internal, message).hint(error.hint()))
        }
        _ = signals.next() => {
            service::tell(&[NotifyState::Stopping], printer);
            match served {
                Served::Alone(server) => server.shutdown().await?,
                Served::Directory(hosted) => hosted.shutdown().await?,
            }
            Ok(0)
        }
    }
}

/// What serves the data.
enum Served {
    Alone(Server),
    /// With the socket of this user's own server.
    Directory(RunningServer),
}

impl Served {
    fn server(&self) -> &Server {
        match self {
            Served::Alone(server) => server,
            Served::Directory(hosted) => hosted.server(),
        }
    }
}

/// Returns the directory of this user's own server.
fn own_dir(state_dir: Option<PathBuf>, printer: &Printer) -> Result<PathBuf, Failure> {
    let connect = state_dir.into_iter().fold(ConnectArgs::default(), |args, dir| args.with(Key::StateDir, dir));
    let dir = settings::state_dir(&Settings::read(connect, printer)?.all)?;
    ServerDir::new(&dir).check()?;
    Ok(dir)
}

/// Serves all users of this machine from a directory that they share.
async fn serve_machine(
    home: &ServerDir,
    args: &ServeArgs,
    mut signals: Signals,
    printer: &Printer,
) -> Result<u8, Failure> {
    let mut config = args.limits.apply(server_config().with_first_zxid(args.first_zxid));
    config.admin = args.admin;
    config.admin_hosts.clone_from(&args.admin_host);
    config.words = args.words.clone().unwrap_or_default();
    raise_descriptor_limit();
    let hosted = home.host_with(config, &registers::all()).await?;
    streams::STDOUT.push(format!("{}\n", hosted.endpoint().connect_string()));
    let (dir, machine) = (home.dir().display(), advice::machine(home));
    printer.note(&format!("serving all users who may enter {dir}; they use it with {machine}"));
    service::tell(&[NotifyState::Ready], printer);
    tokio::select! {
        error = hosted.server().stopped() => {
            let message = format!("the server has stopped: {error}");
            Err(Failure::new(Code::Internal, message).hint(error.hint()))
        }
        _ = signals.next() => {
            service::tell(&[NotifyState::Stopping], printer);
            hosted.shutdown().await?;
            Ok(0)
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::new(Code::Usage, format!("cannot read {}: {error}", file.display())))
}

/// Reads a file that no other user may know or choose.
fn read_private(file: &Path) -> Result<String, Failure> {
    Ok(read_credentials("private file", file)?)
}

/// Reads a secret. Errors do not contain it.
fn read_secret(file: &Path) -> Result<Secret, Failure> {
    let content = read_private(file)?;
    let secret = content.trim();
    if (16..=1024).contains(&secret.len()) && !secret.contains('\n') {
        return Ok(Secret::new(secret));
    }
    let problem = format!("{}: a secret has 16 to 1024 bytes on one line", file.display());
    Err(Failure::new(Code::Usage, problem).hint(format!("head -c 32 /dev/urandom | base64 > {}", file.display())))
}

fn read_accounts(file: &Path) -> Result<Accounts, Failure> {
    let text = read_private(file)?;
    Accounts::parse(&text).map_err(|line| {
        Failure::new(Code::Usage, format!("{}: line {line} is not an account", file.display()))
            .hint("write `super USER:HASH` or `sasl USER:PASSWORD`, one per line")
    })
}
