//! Replaces ZooKeeper containers: each container is a Lockkeeper server in a process of its own.
//!
//! Provides the part of testcontainers that the tests of the crate `zookeeper-client` use. Java properties and files that the
//! tests set for their server become flags. A test that starts several servers for one ensemble panics, because there is no
//! replacement.

pub mod clients {
    use crate::core::{Container, RunnableImage};
    use crate::images::generic::GenericImage;

    /// In testcontainers, Docker's command line.
    #[derive(Default)]
    pub struct Cli(());

    impl Cli {
        /// Starts a server and waits until it serves.
        pub fn run(&self, image: impl Into<RunnableImage<GenericImage>>) -> Container<'_, GenericImage> {
            Container::start_of(&image.into())
        }
    }
}

/// The container request and the running container.
pub mod core {
    use std::collections::HashMap;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::marker::PhantomData;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Mutex;
    use std::time::Duration;

    use crate::images::generic::GenericImage;

    /// In testcontainers, a health check; a Lockkeeper server reports itself when it serves.
    #[derive(Default)]
    pub struct Healthcheck(());

    impl Healthcheck {
        pub fn with_cmd<T>(self, _words: impl Iterator<Item = T>) -> Self {
            self
        }

        pub fn with_interval(self, _interval: Duration) -> Self {
            self
        }

        pub fn with_retries(self, _retries: u32) -> Self {
            self
        }
    }

    /// The condition to wait for.
    pub enum WaitFor {
        Healthcheck,
    }

    /// An image with the container's settings and files.
    pub struct RunnableImage<I> {
        properties: String,
        volumes: HashMap<String, PathBuf>,
        image: PhantomData<I>,
    }

    impl From<GenericImage> for RunnableImage<GenericImage> {
        fn from(image: GenericImage) -> Self {
            Self { properties: image.properties, volumes: HashMap::new(), image: PhantomData }
        }
    }

    impl<I> RunnableImage<I> {
        pub fn with_volume(mut self, (file, place): (&str, &str)) -> Self {
            self.volumes.insert(place.to_owned(), file.into());
            self
        }

        pub fn with_network(self, _name: &str) -> Self {
            panic!("an ensemble: this is one server");
        }
    }

    pub struct Container<'d, I> {
        process: Mutex<Child>,
        port: u16,
        image: PhantomData<(&'d (), I)>,
    }

    impl Container<'_, GenericImage> {
        pub(crate) fn start_of(image: &RunnableImage<GenericImage>) -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let setting = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
            let mut accounts = fs::read_to_string(setting("LOCKKEEPER_ACCOUNTS")).unwrap();
            if let Some(users) = image.volumes.get("/conf/jaas.conf") {
                for line in fs::read_to_string(users).unwrap().lines() {
                    if let Some((user, password)) = line.trim().strip_prefix("user_").and_then(|line| line.split_once('=')) {
                        accounts += &format!("sasl {user}:{}\n", password.trim_matches([';', '"']));
                    }
                }
            }
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let place = std::env::temp_dir().join(format!("standing-in-{}-{count}", std::process::id()));
            fs::write(&place, accounts).unwrap();
            let mut command = Command::new(setting("LOCKKEEPER"));
            command.args(["serve", "--memory", "--listen", "127.0.0.1:0", "--accounts"]).arg(&place);
            for word in image.properties.split_whitespace() {
                if let Some(interval) = word.strip_prefix("-Dznode.container.checkIntervalMs=") {
                    command.args(["--container-check", &format!("{interval}ms")]);
                }
            }
            if let (Some(own), Some(others)) = (image.volumes.get("/certs/server.pem"), image.volumes.get("/certs/ca.cert.pem")) {
                command.arg("--tls-cert").arg(own).arg("--tls-key").arg(own).arg("--tls-client-ca").arg(others);
            }
            let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            // The server prints its address when it serves.
            let mut said = String::new();
            BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
            fs::remove_file(place).unwrap();
            let port = said.trim().rsplit(':').next().and_then(|port| port.parse().ok());
            let port = port.unwrap_or_else(|| panic!("the server does not start: {command:?}"));
            Self { process: Mutex::new(process), port, image: PhantomData }
        }

        /// The address at which the server can be reached, whatever port the image names.
        pub fn get_host_port(&self, _inside: u16) -> u16 {
            self.port
        }

        pub fn start(&self) {
            panic!("an ensemble: this is one server");
        }

        pub fn stop(&self) {
            let mut process = self.process.lock().unwrap();
            // It may have been stopped before.
            let _ = process.kill();
            process.wait().unwrap();
        }

        pub fn stdout(&self) -> LogStream {
            panic!("an ensemble: this is one server");
        }
    }

    impl<I> Drop for Container<'_, I> {
        fn drop(&mut self) {
            let process = self.process.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The log of a server of an ensemble; no such server is ever started.
    pub struct LogStream(());

    impl LogStream {
        pub fn wait_for_message(self, _message: &str) -> Result<(), String> {
            Err("an ensemble: this is one server".to_owned())
        }
    }
}

pub mod images {
    /// The only kind.
    pub mod generic {
        use crate::core::{Healthcheck, WaitFor};

        /// An image by its name.
        pub struct GenericImage {
            pub(crate) properties: String,
        }

        impl GenericImage {
            pub fn new(_name: &str, _tag: &str) -> Self {
                Self { properties: String::new() }
            }

            pub fn with_env_var(mut self, name: &str, value: impl Into<String>) -> Self {
                if name == "SERVER_JVMFLAGS" {
                    self.properties = value.into();
                }
                self
            }

            pub fn with_healthcheck(self, _health: Healthcheck) -> Self {
                self
            }

            pub fn with_wait_for(self, _what: WaitFor) -> Self {
                self
            }
        }
    }
}
