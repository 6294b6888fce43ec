//! POSIX access lists, which Linux gives as an extended attribute: a version, and eight bytes for
//! each entry. A list may let users and groups write whom the mode of a file does not name.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// A user or a group that a list lets write, by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
}

const VERSION: u32 = 2;
const USER: u16 = 2;
const GROUP: u16 = 8;
/// The entry with the most that users and groups of the list may do.
const MASK: u16 = 16;
const WRITE: u16 = 2;

/// The users and groups whom the list of what is at `path` lets write.
///
/// # Errors
///
/// When the list cannot be read.
pub fn writers(path: &Path) -> io::Result<Vec<Writer>> {
    writers_of(&list_of(path)?)
}

/// The users and groups whom the list of an open file lets write.
///
/// # Errors
///
/// When the list cannot be read.
pub fn writers_of_open(file: &File) -> io::Result<Vec<Writer>> {
    writers_of(&list_of_open(file)?)
}

/// The list of what is at `path`, as the system keeps it; empty without one.
#[cfg(target_os = "linux")]
fn list_of(path: &Path) -> io::Result<Vec<u8>> {
    attribute(|list| rustix::fs::getxattr(path, NAME, list))
}

/// The list of an open file; empty without one.
#[cfg(target_os = "linux")]
fn list_of_open(file: &File) -> io::Result<Vec<u8>> {
    attribute(|list| rustix::fs::fgetxattr(file, NAME, list))
}

#[cfg(target_os = "linux")]
const NAME: &str = "system.posix_acl_access";

#[cfg(target_os = "linux")]
fn attribute(get: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    use rustix::io::Errno;
    // The kernel has no longer attribute.
    let mut list = vec![0; 1 << 16];
    match get(&mut list) {
        Ok(length) => {
            list.truncate(length);
            Ok(list)
        }
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn list_of(_: &Path) -> io::Result<Vec<u8>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
fn list_of_open(_: &File) -> io::Result<Vec<u8>> {
    Ok(Vec::new())
}

/// An entry of a list.
struct Entry {
    tag: u16,
    rights: u16,
    /// Id of the user or of the group.
    id: u32,
}

impl Entry {
    fn read(bytes: &[u8; 8]) -> Self {
        let [t0, t1, r0, r1, i0, i1, i2, i3] = *bytes;
        Self {
            tag: u16::from_le_bytes([t0, t1]),
            rights: u16::from_le_bytes([r0, r1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn writer(&self) -> Option<Writer> {
        match self.tag {
            USER => Some(Writer::User(self.id)),
            GROUP => Some(Writer::Group(self.id)),
            _ => None,
        }
    }
}

fn writers_of(list: &[u8]) -> io::Result<Vec<Writer>> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let entries = match list.split_first_chunk() {
        Some((version, entries)) if u32::from_le_bytes(*version) == VERSION => entries,
        _ => {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "its access list is of an unknown version",
            ));
        }
    };
    let entries: Vec<Entry> = entries.as_chunks().0.iter().map(Entry::read).collect();
    let mask = entries
        .iter()
        .find(|entry| entry.tag == MASK)
        .map_or(u16::MAX, |entry| entry.rights);
    Ok(entries
        .iter()
        .filter(|entry| entry.rights & mask & WRITE != 0)
        .filter_map(Entry::writer)
        .collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NONE: u32 = u32::MAX;

    /// The attribute of an access list with these entries: kind, rights, id.
    pub(crate) fn list(entries: &[[u32; 3]]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for [tag, rights, id] in entries {
            bytes.extend_from_slice(&tag.to_le_bytes()[..2]);
            bytes.extend_from_slice(&rights.to_le_bytes()[..2]);
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn names_writers_that_no_mode_shows() {
        let owner = [1, 7, NONE];
        let group = [4, 5, NONE];
        let others = [32, 5, NONE];
        let user = [2, 7, 65534];
        let writers = |entries: &[[u32; 3]]| writers_of(&list(entries)).unwrap();
        assert_eq!(
            writers(&[
                owner,
                user,
                [2, 5, 3],
                group,
                [8, 2, 7],
                [16, 7, NONE],
                others
            ]),
            [Writer::User(65534), Writer::Group(7)]
        );
        assert_eq!(
            writers(&[owner, user, group, [16, 5, NONE], others]),
            [],
            "the mask takes the right away"
        );
        assert_eq!(writers(&[owner, group, others]), []);
        assert_eq!(writers_of(&[]).unwrap(), []);
    }

    #[test]
    fn refuses_unknown_versions() {
        assert!(writers_of(&[3, 0, 0, 0]).is_err());
        assert!(writers_of(&[2]).is_err());
    }
}
