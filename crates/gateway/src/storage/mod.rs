//! Attachments: files that clients upload, kept beside the sessions and served under signed URLs.
//!
//! A URL is signed for an hour and works for anybody who has it. Only its bucket and path are stored; a
//! client that reads the message later gets the URL with a new signature.

pub mod parts;
pub mod sign;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{GetResult, ObjectStore, PutPayload};
use thread_agent::attachments::STORAGE;

use crate::access::token::read_or_create_secret;
use crate::error::StartError;
use sign::Signer;

/// The bucket of uploaded files.
pub const BUCKET: &str = "attachments";

/// The file in the root with the key that signs URLs.
const KEY: &str = "signing-key";

pub struct Storage {
    /// The folder below the root. It has all attachments that were uploaded here.
    files: LocalFileSystem,
    dir: PathBuf,
    /// The remote store, if there is one. The folder then has copies for agents, which open files.
    remote: Option<Arc<dyn ObjectStore>>,
    pub signer: Signer,
    /// Origins of other stores. Their URLs are parsed in the same way, but neither verified nor signed.
    pub other_origins: Vec<String>,
}

impl Storage {
    /// # Errors
    ///
    /// The URL is not that of a storage, or the storage cannot be used.
    pub fn open(root: &Path, url: Option<&str>, other_origins: Vec<String>) -> Result<Storage, StartError> {
        let signer = Signer::new(read_or_create_secret(&root.join(KEY))?.as_bytes());
        let remote = url.map(remote).transpose()?;
        let dir = root.join(STORAGE);
        let files = std::fs::create_dir_all(&dir).map_err(|e| e.to_string());
        let files = files.and_then(|()| LocalFileSystem::new_with_prefix(&dir).map_err(|e| e.to_string()));
        let files = files.map_err(|e| {
            StartError::failed(format!("{} cannot be used: {e}", dir.display()), "check its permissions")
        })?;
        Ok(Storage { files, dir, remote, signer, other_origins })
    }

    /// Fetches an object; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn get(&self, object: &Object) -> Result<Option<GetResult>, object_store::Error> {
        let location = object.location();
        let found = match &self.remote {
            Some(remote) => remote.get(&location).await,
            None => self.files.get(&location).await,
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Stores an object. Once this has returned, the local file survives a power cut.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn put(&self, object: &Object, bytes: axum::body::Bytes) -> Result<(), object_store::Error> {
        let (location, payload) = (object.location(), PutPayload::from_bytes(bytes));
        if let Some(remote) = &self.remote {
            remote.put(&location, payload.clone()).await?;
        }
        self.files.put(&location, payload).await?;
        let file = self.file_of(object);
        let synced = tokio::task::spawn_blocking(move || {
            std::fs::File::open(&file)?.sync_all()?;
            file.ancestors().skip(1).take(2).try_for_each(|dir| std::fs::File::open(dir)?.sync_all())
        });
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
            store: "local",
            source,
        };
        synced.await.map_err(|e| failed(e.into()))?.map_err(|e| failed(e.into()))
    }

    /// The local file of an object that was uploaded here.
    pub fn file_of(&self, object: &Object) -> PathBuf {
        self.dir.join(&object.bucket).join(&object.path)
    }
}

#[cfg(feature = "s3")]
fn remote(url: &str) -> Result<Arc<dyn ObjectStore>, StartError> {
    // A client is waiting for the response.
    let retry = object_store::RetryConfig {
        max_retries: 3,
        retry_timeout: std::time::Duration::from_secs(20),
        ..Default::default()
    };
    let parts = url.strip_prefix("s3://").map(|rest| rest.split_once('/').unwrap_or((rest, "")));
    let Some((bucket, prefix)) = parts.filter(|(bucket, _)| !bucket.is_empty()) else {
        return Err(StartError::usage(
            format!("'{url}' is not a storage URL"),
            "give --storage a URL like s3://bucket/prefix",
        ));
    };
    let built =
        object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).build();
    let store = built.map_err(|e| {
        let e = e.to_string().replace('\n', " ");
        StartError::usage(format!("the storage '{url}' cannot be used: {e}"), "check the AWS_ variables")
    })?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

#[cfg(not(feature = "s3"))]
fn remote(url: &str) -> Result<Arc<dyn ObjectStore>, StartError> {
    if !url.starts_with("s3://") {
        return Err(StartError::usage(
            format!("'{url}' is not a storage URL"),
            "leave out --storage to keep attachments below the root",
        ));
    }
    Err(StartError::usage(
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
