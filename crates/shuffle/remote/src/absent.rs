//! What is in the place of `store` without the Cargo feature `stores`: nothing can be opened.

use std::time::Duration;

use crate::{Location, RemoteError};

/// A connection to a store. There is none.
#[derive(Clone, Debug)]
pub struct Store(());

/// An object that is being written.
#[derive(Debug)]
pub struct Upload(());

/// An object that is whole.
#[derive(Debug)]
pub struct Object(());

/// A directory whose objects may have owners in several processes.
#[derive(Clone, Debug)]
pub struct Folder(());

impl Folder {
    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn upload(&self) -> Result<Upload, RemoteError> {
        Err(RemoteError::Closed)
    }

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn object(&self, _name: &str) -> Result<Object, RemoteError> {
        Err(RemoteError::Closed)
    }
}

impl Store {
    /// Refuses every location.
    ///
    /// # Errors
    /// [`RemoteError::NotBuilt`].
    pub fn open(location: &Location, _lease: Duration, _reading: u64) -> Result<Self, RemoteError> {
        Err(RemoteError::NotBuilt(location.to_string()))
    }

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn upload(&self) -> Result<Upload, RemoteError> {
        Err(RemoteError::Closed)
    }

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn folder(&self) -> Result<Folder, RemoteError> {
        Err(RemoteError::Closed)
    }

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn adopt(&self, _object: &str) -> Result<Folder, RemoteError> {
        Err(RemoteError::Closed)
    }

    pub fn set_lease(&self, _lease: Duration) {}

    pub fn close(&self) {}
}

impl Upload {
    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn append(&mut self, _pieces: &[&[u8]]) -> Result<(), RemoteError> {
        Err(RemoteError::Closed)
    }

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn finish(self) -> Result<Object, RemoteError> {
        Err(RemoteError::Closed)
    }
}

impl Object {
    pub fn length(&self) -> u64 {
        0
    }

    pub fn name(&self) -> &str {
        ""
    }

    pub fn leave(&self) {}

    /// # Errors
    /// [`RemoteError::Closed`].
    pub fn read_at(&self, _at: u64, _into: &mut [u8]) -> Result<(), RemoteError> {
        Err(RemoteError::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_refused_by_name() {
        let text = "s3://rows/a";
        let location: Location = text.parse().unwrap();
        let error = Store::open(&location, Duration::ZERO, 0).unwrap_err();
        assert_eq!(error, RemoteError::NotBuilt(text.into()));
    }
}
