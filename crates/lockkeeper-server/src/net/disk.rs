//! The thread that waits for the disk, so that nobody else has to.
//!
//! It makes one batch durable at a time. While it does, the engine gathers the next one: the slower the disk, the larger
//! the groups.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc as async_mpsc;

use crate::error::ServerError;
use crate::store::{Batch, Store};

/// A running disk thread; dropping it lets the current batch finish and closes the store.
#[derive(Debug)]
pub(crate) struct Disk {
    batches: Option<mpsc::Sender<Batch>>,
    results: async_mpsc::UnboundedReceiver<(Batch, Result<(), ServerError>)>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    pub(crate) fn start(mut store: Box<dyn Store>) -> Result<Self, ServerError> {
        let (batches, inbox) = mpsc::channel::<Batch>();
        let (outbox, results) = async_mpsc::unbounded_channel();
        let run = move || {
            for batch in inbox {
                let result = store.commit(&batch);
                let failed = result.is_err();
                let unheard = outbox.send((batch, result)).is_err();
                if failed {
                    return;
                }
                if unheard {
                    break;
                }
            }
            store.close();
        };
        let thread = thread::Builder::new()
            .name("lockkeeper-disk".to_owned())
            .spawn(run)
            .map_err(|source| ServerError::System { what: "a thread for the disk", source })?;
        Ok(Self { batches: Some(batches), results, thread: Some(thread) })
    }

    /// Makes a batch durable and gives it back for its buffers.
    pub(crate) async fn commit(&mut self, batch: Batch) -> Result<Batch, ServerError> {
        let sent = self.batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok());
        if !sent {
            return Err(ServerError::Bug);
        }
        // The thread ends only after an error it has told, or by a panic.
        let (batch, result) = self.results.recv().await.ok_or(ServerError::Bug)?;
        result.map(|()| batch)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by then; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
