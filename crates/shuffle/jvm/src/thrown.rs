//! Errors and panics as Java's exceptions.

use std::any::Any;
use std::io;

use jni::Env;
use jni::errors::{Error as JniError, ErrorPolicy};
use jni::strings::{JNIStr, JNIString};
use jni::{errors, jni_str};
use treadle_shuffle_client::Error;

/// Why a native method has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Thrown {
    #[error(transparent)]
    Client(#[from] Error),
    /// A Java exception may be pending already.
    #[error(transparent)]
    Jni(#[from] JniError),
    #[error("{0} was closed, or never opened")]
    Closed(&'static str),
    /// The same, of what can be opened anew: another task has found that the connection has ended.
    #[error("{0} was closed, or never opened")]
    Gone(&'static str),
    #[error("{0}")]
    Argument(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Thrown {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The class of the exception. What Java does depends on it.
    fn class(&self) -> &'static JNIStr {
        let Self::Client(error) = self else {
            return match self {
                Self::Closed(_) => jni_str!("java/lang/IllegalStateException"),
                Self::Gone(_) => jni_str!("io/treadle/spark/service/ServiceException$Gone"),
                Self::Argument(_) => jni_str!("java/lang/IllegalArgumentException"),
                Self::Io { .. } => jni_str!("java/io/IOException"),
                _ => jni_str!("java/lang/RuntimeException"),
            };
        };
        match error {
            Error::RowsLost { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$RowsLost")
            }
            Error::Superseded { .. } | Error::NotCommitted { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$Superseded")
            }
            Error::LateAttempt { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$LateAttempt")
            }
            Error::Interrupted { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$Interrupted")
            }
            Error::TimedOut { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$TimedOut")
            }
            Error::Gone { .. } | Error::Unreachable { .. } => {
                jni_str!("io/treadle/spark/service/ServiceException$Gone")
            }
            _ => jni_str!("io/treadle/spark/service/ServiceException"),
        }
    }
}

/// Throws what a native method failed with. Its result is then nothing.
pub(crate) struct Throws;

impl<T: Default> ErrorPolicy<T, Thrown> for Throws {
    type Captures<'unowned_env_local: 'native_method, 'native_method> = ();

    fn on_error<'unowned_env_local: 'native_method, 'native_method>(
        env: &mut Env<'unowned_env_local>,
        _captures: &mut Self::Captures<'unowned_env_local, 'native_method>,
        error: Thrown,
    ) -> errors::Result<T> {
        throw(env, error.class(), &error.to_string());
        Ok(T::default())
    }

    fn on_panic<'unowned_env_local: 'native_method, 'native_method>(
        env: &mut Env<'unowned_env_local>,
        _captures: &mut Self::Captures<'unowned_env_local, 'native_method>,
        payload: Box<dyn Any + Send + 'static>,
    ) -> errors::Result<T> {
        let text = match (
            payload.downcast_ref::<&str>(),
            payload.downcast_ref::<String>(),
        ) {
            (Some(text), _) => text,
            (_, Some(text)) => text.as_str(),
            _ => "without a text",
        };
        let text = format!("a bug of Treadle's client: {text}");
        throw(env, jni_str!("java/lang/RuntimeException"), &text);
        Ok(T::default())
    }
}

fn throw(env: &mut Env<'_>, class: &'static JNIStr, text: &str) {
    if env.exception_check() {
        return;
    }
    // By its name, the loader of the thread would be asked first, which may have the class of another version. This asks that
    // of the native method.
    let error = jni_str!("java/lang/Error");
    let found = env.find_class(class).or_else(|_| env.find_class(error));
    if let Ok(class) = found {
        // It always says that an exception is pending.
        let _ = env.throw_new(class, JNIString::new(text));
    }
}
