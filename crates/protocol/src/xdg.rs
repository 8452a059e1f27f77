//! Where a gateway and its clients keep their files, so that they find each other's.

use std::env;
use std::path::PathBuf;

/// The directory that a variable of the XDG Base Directory Specification names, such as `XDG_DATA_HOME`, or else
/// `below_home` in the home directory. A relative path counts as not set; `None` without a home directory.
pub fn base_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))
}
