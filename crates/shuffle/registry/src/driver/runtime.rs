//! One thread with a runtime, as long as somebody uses it.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::error::RegistryError;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Start = Box<dyn FnOnce() -> Task + Send>;

/// Starts tasks in the thread. The thread ends when this is dropped and all of them have ended.
pub(super) struct Runtime {
    starts: mpsc::UnboundedSender<Start>,
}

impl Runtime {
    pub(super) fn start() -> Result<Arc<Self>, RegistryError> {
        let failed = |source| RegistryError::System {
            what: "a registry's client needs a thread",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (starts, mut started) = mpsc::unbounded_channel::<Start>();
        let run = move || {
            let tasks = LocalSet::new();
            let start = async {
                while let Some(start) = started.recv().await {
                    tasks.spawn_local(start());
                }
            };
            runtime.block_on(tasks.run_until(start));
            runtime.block_on(tasks);
        };
        let thread = std::thread::Builder::new().name("treadle-registry".to_owned());
        thread.spawn(run).map_err(failed)?;
        Ok(Arc::new(Self { starts }))
    }

    /// Runs a task in the thread.
    pub(super) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        start: impl FnOnce() -> F + Send + 'static,
    ) {
        let start: Start = Box::new(|| Box::pin(start()));
        // The thread receives as long as this lives.
        let _ = self.starts.send(start);
    }
}
