//! The secret that the processes of one cluster share.
//!
//! Nothing of a peer is deserialised before it has proved that it knows the secret; on one machine
//! too, where another user can reach the loopback interface. A proof is an HMAC-SHA256 over the
//! transcript of the handshake (RFC 2104, FIPS 198-1), so the secret itself never travels.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::{constant_time, hmac, rand};

/// The environment variable that names the file of the secret.
pub const SECRET_FILE_VARIABLE: &str = "TREADLE_SECRET_FILE";

/// Fewest bytes of a secret: 128 bits, if they are random.
pub const MIN_SECRET: usize = 16;

/// Most bytes of a secret.
pub const MAX_SECRET: usize = 1024;

/// Bytes of a proof.
pub const PROOF: usize = 32;

/// A secret that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Too short to be safe, or too long to be a secret.
    #[error(
        "the secret{} has {length} bytes; it must have {MIN_SECRET} to {MAX_SECRET}: write one \
         with `openssl rand -hex 32`",
        of(.path)
    )]
    Length {
        /// Its file, if it came from one.
        path: Option<PathBuf>,
        /// How many bytes it has; one more than the most where the file is longer.
        length: usize,
    },
    /// Somebody else may read the file.
    #[error(
        "{} may be used by others (mode {mode:04o}), so it is no secret: run `chmod 600 {}`, and \
         write a new secret if others use this machine",
        .path.display(), .path.display()
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is another user's.
    #[error(
        "{} belongs to user id {owner}, and this process runs as {user}: copy it to a file of your \
         own and name that in {SECRET_FILE_VARIABLE}",
        .path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The path is a directory, a device, or the like.
    #[error("{} is no regular file: name the secret's file in {SECRET_FILE_VARIABLE}", .path.display())]
    NotAFile { path: PathBuf },
    /// There is no directory for the user's files.
    #[error("no home directory to keep the secret in: name a file in {SECRET_FILE_VARIABLE}")]
    NoHome,
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

fn of(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or_else(String::new, |path| format!(" in {}", path.display()))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SecretError {
    move |source| SecretError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Who makes a proof. The two differ, so that a proof cannot be sent back to who made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Who connected.
    Client,
    /// Who accepted the connection.
    Server,
}

impl Role {
    /// The prefix of what is authenticated: neither is a prefix of the other, and nothing else is
    /// ever authenticated under the same key.
    const fn domain(self) -> &'static [u8] {
        match self {
            Role::Client => b"treadle handshake 1 client\0",
            Role::Server => b"treadle handshake 1 server\0",
        }
    }
}

/// What the processes of one cluster know and nobody else. Its `Debug` output does not show it.
#[derive(Clone)]
pub struct Secret {
    key: hmac::Key,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// The secret that consists of `bytes`.
    ///
    /// # Errors
    /// [`SecretError::Length`] unless there are [`MIN_SECRET`] to [`MAX_SECRET`].
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        Self::checked(bytes.as_ref(), None)
    }

    fn checked(bytes: &[u8], path: Option<&Path>) -> Result<Self, SecretError> {
        if !(MIN_SECRET..=MAX_SECRET).contains(&bytes.len()) {
            return Err(SecretError::Length {
                path: path.map(Path::to_owned),
                length: bytes.len(),
            });
        }
        Ok(Secret {
            key: hmac::Key::new(hmac::HMAC_SHA256, bytes),
        })
    }

    /// The secret in a file: all of its bytes, without white space at its end.
    ///
    /// # Errors
    /// Unless the file belongs to this process's user and nobody else has any permission on it.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref();
        let file = open_private(path)?;
        let mut bytes = Zeroized(Vec::with_capacity(MAX_SECRET + 2));
        file.take(MAX_SECRET as u64 + 2)
            .read_to_end(&mut bytes.0)
            .map_err(failed("read", path))?;
        Self::checked(bytes.0.trim_ascii_end(), Some(path))
    }

    /// The secret of this user, made when there is none: the file that `$TREADLE_SECRET_FILE`
    /// names, or `treadle/secret` in the user's directory for configuration.
    ///
    /// # Errors
    /// As [`Secret::from_file`]; and where the file cannot be made.
    pub fn for_user() -> Result<Self, SecretError> {
        Self::load_or_create(&user_path()?)
    }

    /// The secret in `path`, made there, with its directory, when there is none: 32 random bytes
    /// as hexadecimal digits. Processes that do this at once get the same secret.
    ///
    /// # Errors
    /// As [`Secret::from_file`]; and where the file cannot be made.
    pub fn load_or_create(path: &Path) -> Result<Self, SecretError> {
        match Self::from_file(path) {
            Err(SecretError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                create(path)?;
                Self::from_file(path)
            }
            answer => answer,
        }
    }

    /// Proves that this process, in its `role`, knows the secret.
    ///
    /// The transcript must hold bytes that the *other* side chose at random for this connection,
    /// or an old proof could be used again; and all that was said before, so that nobody in
    /// between can have changed it.
    pub fn prove(&self, role: Role, transcript: &[u8]) -> [u8; PROOF] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(role.domain());
        context.update(transcript);
        let mut proof = [0; PROOF];
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }

    /// Whether `proof` is what a peer in `role` that knows the secret answers. Takes the same time
    /// wherever the proof is wrong.
    #[must_use]
    pub fn verify(&self, role: Role, transcript: &[u8], proof: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(&self.prove(role, transcript), proof).is_ok()
    }
}

/// Opens a file that nobody but this process's user can read, to read it.
///
/// # Errors
/// Unless it is a regular file that belongs to the user, and others have no permission on it.
pub fn open_private(path: &Path) -> Result<File, SecretError> {
    // Without NONBLOCK, opening a pipe that somebody put there would wait for its writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(failed("open the secret", path))?;
    // What is checked is what was opened, not what the path leads to a moment later.
    let metadata = file.metadata().map_err(failed("examine", path))?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        return Err(SecretError::NotAFile {
            path: path.to_owned(),
        });
    }
    if metadata.uid() != user {
        return Err(SecretError::Owner {
            path: path.to_owned(),
            owner: metadata.uid(),
            user,
        });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(SecretError::Permissions {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
        });
    }
    Ok(file)
}

/// Where the secret of this user is kept.
///
/// # Errors
/// [`SecretError::NoHome`].
pub fn user_path() -> Result<PathBuf, SecretError> {
    if let Some(path) = std::env::var_os(SECRET_FILE_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        // "If an implementation encounters a relative path [it] should consider the path invalid
        // and ignore it" (XDG Base Directory Specification).
        .filter(|path| path.is_absolute())
        .or_else(|| Some(std::env::home_dir()?.join(".config")))
        .filter(|path| path.is_absolute())
        .map(|config| config.join("treadle").join("secret"))
        .ok_or(SecretError::NoHome)
}

/// Whether two secret texts are the same. Takes the same time wherever they differ.
#[must_use]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(one, other).is_ok()
}

/// `N` bytes that nobody can guess.
///
/// # Panics
/// Where the operating system has no random numbers: nothing can be safe then.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the operating system gives random numbers");
    bytes
}

/// Makes the file unless it is there. It appears with all of its content: it is written under
/// another name, and linked, which fails where another process was faster.
fn create(path: &Path) -> Result<(), SecretError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("create", directory))?;
    let temporary = directory.join(format!(".secret-{}", hex(&random::<8>())));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    let linked = write_secret(&mut file)
        .map_err(failed("write", &temporary))
        .and_then(|()| match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed("create", path)(error))
            }
            _ => Ok(()),
        });
    fs::remove_file(&temporary).map_err(failed("remove", &temporary))?;
    linked
}

fn write_secret(file: &mut File) -> io::Result<()> {
    let mut text = Zeroized(hex(&random::<32>()).into_bytes());
    text.0.push(b'\n');
    file.write_all(&text.0)?;
    file.sync_all()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that do not stay in freed memory.
struct Zeroized(Vec<u8>);

impl Drop for Zeroized {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from leaving out a write that nobody reads.
        std::hint::black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(directory: &Path, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_proof_holds_for_one_role_one_transcript_and_one_secret() {
        let secret = Secret::new([7; 32]).unwrap();
        let proof = secret.prove(Role::Client, b"said before");
        assert!(secret.verify(Role::Client, b"said before", &proof));
        assert!(!secret.verify(Role::Server, b"said before", &proof));
        assert!(!secret.verify(Role::Client, b"said beforE", &proof));
        assert!(!secret.verify(Role::Client, b"said before", &proof[..31]));
        assert!(!secret.verify(Role::Client, b"said before", &[]));
        let mut flipped = proof;
        flipped[31] ^= 1;
        assert!(!secret.verify(Role::Client, b"said before", &flipped));
        let other = Secret::new([8; 32]).unwrap();
        assert!(!other.verify(Role::Client, b"said before", &proof));
    }

    #[test]
    fn a_secret_shows_nothing_of_itself() {
        let secret = Secret::new("a secret that is long enough").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn the_length_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        for length in [0, MIN_SECRET - 1, MAX_SECRET + 1, 100_000] {
            let path = written(directory.path(), &vec![b'x'; length], 0o600);
            let message = Secret::from_file(&path).unwrap_err().to_string();
            assert!(message.contains("must have 16 to 1024"), "{message}");
            assert!(message.contains(path.to_str().unwrap()), "{message}");
        }
        let longest = written(directory.path(), &[b'x'; MAX_SECRET], 0o600);
        Secret::from_file(longest).unwrap();
    }

    #[test]
    fn a_line_feed_at_the_end_is_not_part_of_the_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), b"0123456789abcdef\n", 0o600);
        let proof = Secret::from_file(path).unwrap().prove(Role::Server, b"");
        let same = Secret::new("0123456789abcdef").unwrap();
        assert!(same.verify(Role::Server, b"", &proof));
    }

    #[test]
    fn a_file_that_others_may_use_is_refused_with_the_command_to_run() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let path = written(directory.path(), &[b'x'; 32], mode);
            let message = Secret::from_file(&path).unwrap_err().to_string();
            let command = format!("chmod 600 {}", path.display());
            assert!(message.contains(&command), "{message}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let is_refused = |path: &Path| {
            let error = Secret::from_file(path).unwrap_err();
            assert!(matches!(error, SecretError::NotAFile { .. }), "{error}");
        };
        is_refused(directory.path());
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        is_refused(&pipe);
    }

    #[test]
    fn who_comes_first_makes_the_secret_and_all_have_the_same() {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = directory.path().join(format!("{round}/treadle/secret"));
            let barrier = std::sync::Barrier::new(4);
            let proofs: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            let secret = Secret::load_or_create(&path).unwrap();
                            secret.prove(Role::Client, b"")
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(proofs.iter().all(|proof| *proof == proofs[0]));
            assert_eq!(fs::read(&path).unwrap().len(), 65);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let parent = path.parent().unwrap();
            assert_eq!(fs::metadata(parent).unwrap().mode() & 0o777, 0o700);
            assert_eq!(fs::read_dir(parent).unwrap().count(), 1);
        }
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<32>(), random::<32>());
    }
}
