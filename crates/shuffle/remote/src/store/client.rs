//! The client of a store: how it is reached, and what it says when something fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt as _;
use opendal::layers::{HttpClientLayer, RetryLayer, TimeoutLayer};
use opendal::raw::HttpClient;
use opendal::services::{Fs, HdfsNative, S3};
use opendal::{Error, Operator};

use super::{PAUSE, RETRIES};
use crate::location::Kind;
use crate::{Location, RemoteError};

/// How long a request may take, also one that moves a part.
const WAIT: Duration = Duration::from_secs(30);
/// The longest pause before a request is tried again.
const LONGEST: Duration = Duration::from_secs(2);

/// The client of a store.
pub(super) fn operator(location: &Location) -> Result<Operator, String> {
    let timeouts = TimeoutLayer::new().with_timeout(WAIT).with_io_timeout(WAIT);
    let built = match &location.kind {
        Kind::S3 {
            bucket,
            prefix,
            endpoint,
            region,
        } => {
            let says = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok());
            let region = region
                .clone()
                .or_else(|| says(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
            let endpoint = endpoint.clone();
            let endpoint = endpoint.or_else(|| says(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
            let mut s3 = S3::default().bucket(bucket).root(&format!("/{prefix}"));
            s3 = s3.region(region.as_deref().unwrap_or("us-east-1"));
            if let Some(endpoint) = endpoint {
                s3 = s3.endpoint(&endpoint);
            }
            let retries = RetryLayer::new()
                .with_max_times(RETRIES)
                .with_min_delay(PAUSE)
                .with_max_delay(LONGEST)
                .with_jitter();
            // Connections belong to a runtime, and each store has its own.
            let client = reqwest::Client::builder().connect_timeout(WAIT).build();
            let client = HttpClient::with(client.map_err(|error| error.to_string())?);
            Operator::new(s3).map(|built| {
                let built = built.layer(HttpClientLayer::new(client)).layer(timeouts);
                built.layer(retries).finish()
            })
        }
        // What was written of a stream cannot be written again: the whole object is, by who wanted it.
        Kind::Hdfs { name_node, path } => {
            let hdfs = HdfsNative::default().name_node(name_node).root(path);
            Operator::new(hdfs).map(|built| built.layer(timeouts).finish())
        }
        Kind::File { path } => {
            Operator::new(Fs::default().root(path)).map(|built| built.layer(timeouts).finish())
        }
    };
    built.map_err(|error| said(&error))
}

/// What a store said, for people: never an address with a signature, or what came with it.
pub(super) fn said(error: &Error) -> String {
    let mut text = format!("{}: {}", error.kind(), error.message());
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    if let Some(cause) = cause {
        text = format!("{text}: {cause}");
    }
    // A store may repeat the names of keys.
    let secrets = [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
    ];
    let secrets = secrets.iter().filter_map(|name| std::env::var(name).ok());
    secrets
        .filter(|secret| !secret.is_empty())
        .fold(text, |text, secret| text.replace(&secret, "…"))
}

pub(super) fn failed(action: &'static str, location: &Location, reason: &str) -> RemoteError {
    RemoteError::Failed {
        action,
        object: format!("the remote store {location}"),
        reason: reason.into(),
    }
}

/// What `act` returns, or what it panicked with.
pub(super) fn caught<T>(act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let done = catch_unwind(AssertUnwindSafe(act));
    done.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// The same for what takes time: the client of a store panics where that returns what it does not expect.
pub(super) async fn whole<T>(
    what: impl Future<Output = Result<T, RemoteError>>,
) -> Result<T, RemoteError> {
    let done = AssertUnwindSafe(what).catch_unwind().await;
    done.unwrap_or_else(|panic| {
        Err(RemoteError::Failed {
            action: "use",
            object: "the remote store".into(),
            reason: panicked(&*panic),
        })
    })
}

pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("its client failed: {}", text.unwrap_or("without a reason"))
}
