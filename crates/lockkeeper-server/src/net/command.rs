//! How other threads reach the engine: they send functions, which the server's thread runs between two steps.

use tokio::sync::{mpsc, oneshot};

use crate::error::ServerError;
use crate::net::engine::Engine;

/// A command for the server's thread.
pub(crate) enum Command {
    Run(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Stops the server, which reports the end to this sender.
    Stop(oneshot::Sender<()>),
}

/// Sends commands to one server.
#[derive(Clone, Debug)]
pub(crate) struct Commands(mpsc::UnboundedSender<Command>);

impl Commands {
    pub(crate) fn channel() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Runs a function on the server's thread and returns its result.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ServerError> {
        let (reply, result) = oneshot::channel();
        // The reply fails if the caller no longer waits.
        let run = Command::Run(Box::new(move |engine| drop(reply.send(function(engine)))));
        // A command that cannot be sent is dropped, and its reply with it.
        let _ = self.0.send(run);
        self.answered(result).await
    }

    /// Stops the server and returns the end, for [`Commands::answered`]. If it is dropped, the server does not wait for its
    /// clients.
    pub(crate) fn stop(&self) -> oneshot::Receiver<()> {
        let (reply, stopped) = oneshot::channel();
        let _ = self.0.send(Command::Stop(reply));
        stopped
    }

    /// Waits for the reply to a command.
    ///
    /// The end of its sender is not enough. A command that is sent while the server drops its receiver can stay in tokio's channel,
    /// and the reply's sender with it. So the server keeps its receiver until it has stopped.
    pub(crate) async fn answered<T>(&self, mut reply: oneshot::Receiver<T>) -> Result<T, ServerError> {
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply.ok(),
            () = self.0.closed() => reply.try_recv().ok(),
        };
        reply.ok_or(ServerError::Stopped)
    }
}
