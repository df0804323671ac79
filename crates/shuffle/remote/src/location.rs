//! The URL that names a store, and a place in it.

use std::fmt;
use std::str::FromStr;

use treadle_types::fnv;

use crate::RemoteError;

/// Where a server keeps objects: `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`, `hdfs://NAMENODE:PORT/PATH`, or
/// `file:///PATH` for what is mounted. It has no credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    text: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    S3 {
        bucket: String,
        prefix: String,
        /// `None`: what the environment says, or Amazon's.
        endpoint: Option<String>,
        region: Option<String>,
    },
    Hdfs {
        /// `hdfs://HOST:PORT`.
        name_node: String,
        path: String,
    },
    File {
        path: String,
    },
}

impl Location {
    /// A number of its URL, which is the same in each process and release. It is never 0.
    pub fn number(&self) -> u64 {
        fnv::hash(&self.text).max(1)
    }
}

impl FromStr for Location {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| RemoteError::Scheme(without_user(text)))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = match place.split_once('/') {
            Some((host, path)) => (host, path),
            None => (place, ""),
        };
        if host.contains('@') {
            return Err(RemoteError::Credentials);
        }
        let wrong = |what: String| RemoteError::Location {
            location: without_user(text),
            what,
        };
        if scheme != "s3" && !query.is_empty() {
            return Err(wrong(format!("{scheme} has no options after ?")));
        }
        let kind = match scheme {
            "s3" => {
                let (mut endpoint, mut region) = (None, None);
                for option in query.split('&').filter(|option| !option.is_empty()) {
                    let (name, value) = option.split_once('=').unwrap_or((option, ""));
                    let place = match name {
                        "endpoint" => &mut endpoint,
                        "region" => &mut region,
                        // Its value may be a secret.
                        _ => {
                            return Err(RemoteError::Location {
                                location: format!("{scheme}://{place}"),
                                what: format!(
                                    "there is no option {name}: there are endpoint and region"
                                ),
                            });
                        }
                    };
                    *place = Some(value.to_string());
                }
                if let Some(endpoint) = &endpoint {
                    let server = endpoint
                        .strip_prefix("http://")
                        .or_else(|| endpoint.strip_prefix("https://"));
                    let Some(server) = server.filter(|server| !server.is_empty()) else {
                        return Err(wrong("its endpoint begins with http:// or https://".into()));
                    };
                    if server.contains('@') {
                        return Err(RemoteError::Credentials);
                    }
                }
                if host.is_empty() {
                    return Err(wrong("it names no bucket".into()));
                }
                Kind::S3 {
                    bucket: host.into(),
                    prefix: path.trim_end_matches('/').into(),
                    endpoint,
                    region,
                }
            }
            "hdfs" if host.is_empty() => {
                return Err(wrong("it names no NameNode".into()));
            }
            "hdfs" => Kind::Hdfs {
                name_node: format!("hdfs://{host}"),
                path: format!("/{}", path.trim_end_matches('/')),
            },
            "file" if !host.is_empty() || path.is_empty() => {
                return Err(wrong(
                    "a path of this machine has three slashes, file:///PATH".into(),
                ));
            }
            "file" => Kind::File {
                path: format!("/{}", path.trim_end_matches('/')),
            },
            _ => return Err(RemoteError::Scheme(format!("{scheme}://{place}"))),
        };
        Ok(Self {
            text: text.into(),
            kind,
        })
    }
}

/// A text for people, without what stands before an `@`.
fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => text.into(),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Kind, String> {
        let location = text.parse::<Location>();
        location
            .map(|found| found.kind)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_location_names_a_store_and_a_place_in_it() {
        let s3 = |prefix: &str, endpoint: Option<&str>, region: Option<&str>| Kind::S3 {
            bucket: "rows".into(),
            prefix: prefix.into(),
            endpoint: endpoint.map(Into::into),
            region: region.map(Into::into),
        };
        assert_eq!(parsed("s3://rows"), Ok(s3("", None, None)));
        assert_eq!(
            parsed("s3://rows/a/b/?endpoint=http://localhost:9000&region=eu-1"),
            Ok(s3("a/b", Some("http://localhost:9000"), Some("eu-1")))
        );
        let hdfs = Kind::Hdfs {
            name_node: "hdfs://name:8020".into(),
            path: "/tmp/rows".into(),
        };
        assert_eq!(parsed("hdfs://name:8020/tmp/rows"), Ok(hdfs));
        let path = "/mnt/a".to_string();
        assert_eq!(parsed("file:///mnt/a"), Ok(Kind::File { path }));
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        for (text, reason) in [
            ("/mnt/a", "/mnt/a names no remote store"),
            ("gs://rows/a", "gs://rows/a names no remote store"),
            ("s3:///a", "it names no bucket"),
            ("hdfs:///a", "it names no NameNode"),
            ("hdfs://name/a?user=me", "hdfs has no options"),
            ("file://mnt/a", "three slashes"),
            ("s3://rows?endpoint=localhost", "begins with http"),
            ("s3://rows?key=hidden", "there is no option key"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for text in [
            "s3://me:hidden@rows/a",
            "hdfs://hidden@name/a",
            "s3://rows/a?endpoint=https://me:hidden@host",
            "me:hidden@rows",
            "gs://me:hidden@rows",
            "s3://rows/?endpoint=me:hidden@host",
        ] {
            let error = parsed(text).unwrap_err();
            assert!(!error.contains("hidden"), "{text}: {error}");
        }
    }
}
