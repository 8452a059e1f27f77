//! Attachments: files that clients upload, stored next to the sessions and served under signed URLs.
//!
//! A URL is signed for an hour and works for anyone who has it. Only its bucket and path are stored; a client that
//! reads the message later gets the URL with a new signature.

mod claims;
pub mod parts;
pub mod sign;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, mkdirat, openat, renameat, unlinkat};
use sign::Signer;
use thread::failure::Failure;
use thread_agent::attachments::STORAGE;
use thread_sessions::SessionId;
use thread_sessions::turns::Threads;

use crate::access::token::read_or_create_secret;
use crate::session::blocking_pool;

/// The bucket of uploaded files.
pub const BUCKET: &str = "attachments";

/// How much of a file is read at a time, in bytes.
const PIECE: usize = 256 * 1024;

/// The file in the root with the key that signs URLs.
const KEY: &str = "signing-key";

/// The prefix of files that are being written.
const DRAFT: &str = ".draft-";

pub struct Storage {
    /// The folder below the root. It has all attachments that were uploaded here.
    dir: PathBuf,
    /// The same folder, open: files are made below it, and never it or its parents again.
    folder: OwnedFd,
    /// For reading and writing these files.
    threads: Threads,
    /// The remote store, if there is one. The folder then has copies for agents, which open files.
    remote: Option<Arc<dyn ObjectStore>>,
    pub signer: Signer,
    /// The address of the gateway, which URLs begin with: `http://127.0.0.1:3336`.
    pub base: String,
    /// Origins of other stores. Their URLs are parsed in the same way, but neither verified nor signed.
    pub other_origins: Vec<String>,
}

impl Storage {
    /// # Errors
    ///
    /// The folder or the key cannot be used.
    pub fn open(
        root: &Path,
        base: String,
        remote: Option<Arc<dyn ObjectStore>>,
        other_origins: Vec<String>,
    ) -> Result<Storage, Failure> {
        let signer = Signer::new(read_or_create_secret(&root.join(KEY))?.as_bytes());
        let dir = root.join(STORAGE);
        let unusable = |e: String| {
            Failure::failed(format!("{} cannot be used: {e}", dir.display()), "check its permissions")
        };
        let folder = open_dir(rustix::fs::CWD, &dir).map_err(|e| unusable(e.to_string()))?;
        let threads = Threads::new(blocking_pool::STORAGE);
        Ok(Storage { dir, folder, threads, remote, signer, base, other_origins })
    }

    /// The signed URL of an object.
    pub fn url(&self, object: &Object) -> String {
        format!("{}{}", self.base, self.signer.url(object))
    }

    /// The URL of a stored event's content. Like any other request, it takes the token.
    pub fn event_url(&self, session: SessionId, id: i64) -> String {
        format!("{}/api/v1/sessions/{session}/events/{id}/content", self.base)
    }

    /// Fetches an object; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn get(self: &Arc<Storage>, object: &Object) -> Result<Option<Found>, object_store::Error> {
        let Some(remote) = &self.remote else { return self.read(object).await };
        match remote.get(&object.location()).await {
            Ok(found) => Ok(Some(Found { size: found.meta.size, pieces: found.into_stream() })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads a local file piece by piece, each once the one before it was taken.
    async fn read(self: &Arc<Storage>, object: &Object) -> Result<Option<Found>, object_store::Error> {
        let path = self.file_of(object);
        let open = move || -> io::Result<Option<(Arc<File>, u64)>> {
            let file = match File::open(path) {
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Ok(None);
                }
                opened => opened?,
            };
            let about = file.metadata()?;
            Ok(about.is_file().then(|| (Arc::new(file), about.len())))
        };
        let Some((file, size)) = self.blocking(open).await.map_err(failed)? else { return Ok(None) };
        let next = move |(own, file, at): (Arc<Storage>, Arc<File>, u64)| async move {
            let reading = file.clone();
            let read = move || {
                let mut piece = vec![0; PIECE];
                let length = reading.read_at(&mut piece, at)?;
                piece.truncate(length);
                Ok(piece)
            };
            let piece = own.blocking(read).await.map_err(failed)?;
            let after = at + piece.len() as u64;
            Ok((!piece.is_empty()).then(|| (Bytes::from(piece), (own, file, after))))
        };
        let pieces = futures_util::stream::try_unfold((self.clone(), file, 0), next).boxed();
        Ok(Some(Found { size, pieces }))
    }

    /// Whether an object with exactly these bytes exists.
    pub async fn has(&self, object: &Object, bytes: Bytes) -> bool {
        let path = self.file_of(object);
        self.blocking(move || Ok(std::fs::read(path)? == bytes)).await.unwrap_or(false)
    }

    /// Does work on the files.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.threads.run(work).await.unwrap_or_else(|| Err(io::Error::other("the gateway could not do this")))
    }

    /// Stores an object. Once this has returned, the local file survives a power cut.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn put(self: &Arc<Storage>, object: &Object, bytes: Bytes) -> Result<(), object_store::Error> {
        if let Some(remote) = &self.remote {
            remote.put(&object.location(), PutPayload::from_bytes(bytes.clone())).await?;
        }
        let (own, object) = (self.clone(), object.clone());
        self.blocking(move || own.write(&object, &bytes)).await.map_err(failed)
    }

    /// Writes an object's local file, which only its owner may read. It appears whole, under the name of a draft
    /// until then: whatever happens on the way, the same can be written again.
    fn write(&self, object: &Object, bytes: &[u8]) -> io::Result<()> {
        let name = object.name();
        let (dirs, file) = name.rsplit_once('/').unwrap_or(("", &name));
        let mut opened = vec![self.folder.try_clone()?];
        for dir in dirs.split('/').filter(|dir| !dir.is_empty()) {
            let next = open_dir(&opened[opened.len() - 1], Path::new(dir))?;
            opened.push(next);
        }
        opened.push(open_dir(&opened[opened.len() - 1], Path::new(claims::CLAIMS))?);
        let folder = &opened[opened.len() - 2];
        remove_left_drafts(folder)?;
        let (name, mut draft) = make_draft(folder)?;
        let placed = draft.write_all(bytes).and_then(|()| draft.sync_all());
        let placed = placed.and_then(|()| Ok(renameat(folder, &name, folder, file)?));
        if let Err(e) = placed {
            unlinkat(folder, &name, AtFlags::empty()).ok();
            return Err(e);
        }
        opened.into_iter().rev().try_for_each(|dir| File::from(dir).sync_all())
    }

    /// The local file of an object that was uploaded here.
    pub fn file_of(&self, object: &Object) -> PathBuf {
        self.dir.join(&object.bucket).join(&object.path)
    }
}

/// An object that was found.
pub struct Found {
    pub size: u64,
    pub pieces: BoxStream<'static, Result<Bytes, object_store::Error>>,
}

fn failed(e: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "local", source: e.into() }
}

/// Opens a directory below another; makes it if there is none, but not its parents.
fn open_dir(parent: impl std::os::fd::AsFd, dir: &Path) -> io::Result<OwnedFd> {
    match mkdirat(&parent, dir, Mode::from_raw_mode(0o700)) {
        Err(e) if e != rustix::io::Errno::EXIST => return Err(e.into()),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(openat(&parent, dir, flags, Mode::empty())?)
}

/// Makes an empty file under a name that no object has, and locks it for as long as it is open.
fn make_draft(folder: &OwnedFd) -> io::Result<(String, File)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        let name = format!("{DRAFT}{}", uuid::Uuid::new_v4());
        let draft = File::from(openat(folder, &name, flags, Mode::from_raw_mode(0o600))?);
        // Before it was locked, it may have been taken for one that was left.
        if flock(&draft, FlockOperation::NonBlockingLockExclusive).is_ok() && draft.metadata()?.nlink() > 0 {
            return Ok((name, draft));
        }
    }
}

/// Removes abandoned drafts: their gateway was killed.
fn remove_left_drafts(folder: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(folder)?.flatten() {
        if !entry.file_name().to_bytes().starts_with(DRAFT.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(draft) = openat(folder, entry.file_name(), flags, Mode::empty()) else { continue };
        if flock(&draft, FlockOperation::NonBlockingLockExclusive).is_ok() {
            unlinkat(folder, entry.file_name(), AtFlags::empty()).ok();
        }
    }
    Ok(())
}

/// Opens a remote store, with its settings from the environment.
///
/// # Errors
///
/// The URL is not that of a store, or it lacks settings; this program was built without S3.
#[cfg(feature = "s3")]
pub fn remote(url: &str) -> Result<Arc<dyn ObjectStore>, Failure> {
    // A client is waiting for the response.
    let retry = object_store::RetryConfig {
        max_retries: 3,
        retry_timeout: std::time::Duration::from_secs(20),
        ..Default::default()
    };
    let parts = url.strip_prefix("s3://").map(|rest| rest.split_once('/').unwrap_or((rest, "")));
    let Some((bucket, prefix)) = parts.filter(|(bucket, _)| !bucket.is_empty()) else {
        return Err(Failure::usage(
            format!("'{url}' is not a storage URL"),
            "give --storage a URL like s3://bucket/prefix",
        ));
    };
    // The HTTP client comes without one. That another was installed before is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built =
        object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).build();
    let store = built.map_err(|e| {
        let e = e.to_string().replace('\n', " ");
        Failure::usage(format!("the storage '{url}' cannot be used: {e}"), "check the AWS_ variables")
    })?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

/// Refuses all URLs.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "s3"))]
pub fn remote(url: &str) -> Result<Arc<dyn ObjectStore>, Failure> {
    if !url.starts_with("s3://") {
        return Err(Failure::usage(
            format!("'{url}' is not a storage URL"),
            "leave out --storage to keep attachments below the root",
        ));
    }
    Err(Failure::usage(
        "this thread-serve was built without S3",
        "build it with `cargo build --release -p thread-gateway --features s3`, or leave out --storage to keep \
         attachments below the root",
    ))
}

/// The name of a stored file. Neither part can escape from the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub bucket: String,
    pub path: String,
}

impl Object {
    /// `None` if a segment is empty, begins with a dot, or has other characters than ASCII letters, digits
    /// and `-_.`, or if the path has more than 1024 bytes.
    pub fn new(bucket: &str, path: &str) -> Option<Object> {
        let plain = |segment: &str| {
            !segment.is_empty()
                && !segment.starts_with('.')
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let fits = plain(bucket) && path.len() <= 1024 && path.split('/').all(plain);
        fits.then(|| Object { bucket: bucket.to_owned(), path: path.to_owned() })
    }

    /// Bucket and path in one, as in URLs.
    pub fn name(&self) -> String {
        format!("{}/{}", self.bucket, self.path)
    }

    pub fn location(&self) -> ObjectPath {
        ObjectPath::from(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_lies_outside_of_its_bucket() {
        assert_eq!(Object::new("a", "b/c.png").unwrap().name(), "a/b/c.png");
        for (bucket, path) in [
            ("", "a"),
            ("a", ""),
            ("..", "a"),
            ("a", "../b"),
            ("a", "b/../../c"),
            ("a", "/etc/passwd"),
            ("a", "b//c"),
            ("a", "b/"),
            ("a/b", "c"),
            ("a", "b\\c"),
            ("a", "%2e%2e/c"),
            ("a", ".hidden"),
            ("a", "b\0"),
        ] {
            assert_eq!(Object::new(bucket, path), None, "{bucket} {path}");
        }
    }
}
