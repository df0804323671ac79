//! Drivers of one's own.

use std::io;
use std::sync::Arc;

use treadle_reactor::{Driver, Wait, Waiters};

use crate::error::NetError;

/// A driver for some connections, apart from those that the process shares: what happens on these
/// connections is moved by the threads that wait for them, and never waits behind the bulk of
/// others. [`Options::lane`](crate::Options::lane) puts connections there, and
/// [`Poller::on`](crate::Poller::on) waits for them.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    driver: Arc<Driver>,
    waiters: Waiters,
}

impl Lane {
    /// A lane without connections.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn new() -> Result<Self, NetError> {
        Self::with(Driver::start())
    }

    /// A lane whose threads sleep at once when there is nothing to do. Others spin for a moment
    /// first, which costs a processor and makes what comes next be met sooner: the wrong choice
    /// where many processes of one machine wait for each other.
    ///
    /// One thread or another should be waiting here at nearly all times: no other moves the bytes, but
    /// for one that looks once a second whether somebody does.
    ///
    /// # Errors
    /// As [`Lane::new`].
    pub fn attended() -> Result<Self, NetError> {
        Self::with(Driver::start_attended())
    }

    fn with(driver: io::Result<Arc<Driver>>) -> Result<Self, NetError> {
        let driver = driver.map_err(|source| NetError::io("opening a lane", source))?;
        Ok(Self(Arc::new(Owner {
            driver,
            waiters: Waiters::default(),
        })))
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.0.driver
    }

    /// Waits until `done`, and moves what there is to move on the lane's connections meanwhile, if
    /// no other thread does. `done` is asked again after each turn, and after
    /// [`Lane::notify`]; it is called with no lock held.
    ///
    /// # Errors
    /// When the wait ends before.
    pub fn wait(
        &self,
        done: &mut dyn FnMut() -> bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), NetError> {
        let owner = &self.0;
        Ok(owner.driver.wait(&owner.waiters, done, wait)?)
    }

    /// Makes each thread in [`Lane::wait`] look again.
    pub fn notify(&self) {
        // Who joins them from here on looks by itself before it waits.
        if !self.0.waiters.is_empty() {
            self.0.waiters.wake();
            self.0.driver.wake();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.driver.retire();
    }
}
