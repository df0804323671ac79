//! What can go wrong.

/// What a remote store could not do. No error has a credential in its text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoteError {
    /// It is no URL of a store.
    #[error(
        "{0} names no remote store: say s3://BUCKET/PREFIX, hdfs://NAMENODE:PORT/PATH or file:///PATH"
    )]
    Scheme(String),
    /// A part of the URL is wrong.
    #[error("the location {location} of a remote store is wrong: {what}")]
    Location {
        location: String,
        /// What is wrong, and what to say instead.
        what: String,
    },
    /// The URL has a name or a password before the host. It is not repeated here.
    #[error(
        "the location of a remote store has credentials in it: take them out, and give them by environment variables \
         or files (AWS_ACCESS_KEY_ID, AWS_SHARED_CREDENTIALS_FILE, HADOOP_USER_NAME, …)"
    )]
    Credentials,
    /// This build has no clients of remote stores.
    #[error(
        "{0} cannot be used: this build of Treadle has no clients of remote stores (Cargo feature remote)"
    )]
    NotBuilt(String),
    /// A request failed, also after it was tried again.
    #[error("cannot {action} {object} ({reason})")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// What it was tried on.
        object: String,
        /// What the store said.
        reason: String,
    },
    /// An object has another length than was written.
    #[error(
        "{object} has {found} bytes, but {expected} were written: somebody else has changed it"
    )]
    Length {
        object: String,
        /// The bytes that were written.
        expected: u64,
        /// The bytes that are there.
        found: u64,
    },
    /// The store is not used any more.
    #[error("the remote store is closed")]
    Closed,
}
