//! Checks who may change a file or replace it. The rule is that of `ssh` for its own files: only
//! the user and root.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::find::Found;

/// Most links on the way to a file, as in Linux.
const MOST_LINKS: usize = 40;

/// Somebody other than this user and root who may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherWriter {
    /// The owner, by user id.
    Owner(u32),
    /// A group that may write, by group id.
    Group(u32),
    /// Everybody.
    Anybody,
    /// A user whom the access list names, by user id.
    ListedUser(u32),
    /// A group that the access list names, by group id.
    ListedGroup(u32),
}

impl std::fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owner(id) | Self::ListedUser(id) => write!(f, "user {id}"),
            Self::Group(id) | Self::ListedGroup(id) => write!(f, "group {id}"),
            Self::Anybody => f.write_str("any user"),
        }
    }
}

/// Who may access a file or folder, as the system says it.
#[derive(Debug)]
pub struct Access {
    metadata: Metadata,
    /// Users and groups of its access list, a POSIX ACL, that may write. The mode does not name
    /// them.
    listed: Vec<OtherWriter>,
}

impl Access {
    /// Access to what is at `path`, behind links.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            metadata: std::fs::metadata(path)?,
            listed: acl::writers(&acl::of(path)?)?,
        })
    }

    /// Access to an open file.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of_open(file: &File) -> io::Result<Self> {
        Ok(Self {
            metadata: file.metadata()?,
            listed: acl::writers(&acl::of_open(file)?)?,
        })
    }

    /// Access to a link itself, which belongs to its owner alone: it has no mode and no access
    /// list.
    fn of_link(path: &Path) -> io::Result<Self> {
        Ok(Self {
            metadata: path.symlink_metadata()?,
            listed: Vec::new(),
        })
    }

    /// Returns who else may write: the owner, everybody, a user or a group of the access list, or
    /// the group, checked in this order. In a folder with the sticky bit, such as `/tmp`, only the
    /// folder's owner may replace files of others.
    pub fn other_writer(&self) -> Option<OtherWriter> {
        const GROUP_WRITES: u32 = 0o020;
        const OTHERS_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        let Self { metadata, listed } = self;
        let (mode, owner, group) = (metadata.mode(), metadata.uid(), metadata.gid());
        let user = rustix::process::geteuid().as_raw();
        if owner != 0 && owner != user {
            return Some(OtherWriter::Owner(owner));
        }
        if metadata.is_symlink() || (metadata.is_dir() && mode & STICKY != 0) {
            return None;
        }
        if mode & OTHERS_WRITE != 0 {
            return Some(OtherWriter::Anybody);
        }
        let list = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let is_own = |group| is_own_group(&list("/etc/group"), &list("/etc/passwd"), group, user);
        let is_other = |listed: &&OtherWriter| match listed {
            OtherWriter::ListedUser(id) => *id != 0 && *id != user,
            OtherWriter::ListedGroup(id) => !is_own(*id),
            _ => true,
        };
        if let Some(other) = listed.iter().find(is_other) {
            return Some(*other);
        }
        (mode & GROUP_WRITES != 0 && !is_own(group)).then_some(OtherWriter::Group(group))
    }
}

/// POSIX access lists, which Linux gives as an extended attribute: a version, and eight bytes for
/// each entry.
mod acl {
    use super::{ErrorKind, File, OtherWriter, Path, io};

    const VERSION: u32 = 2;
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    /// The entry with the most that users and groups of the list may do.
    const MASK: u16 = 16;
    const WRITE: u16 = 2;

    /// An entry of a list. `id` is that of the user or the group.
    struct Entry {
        tag: u16,
        rights: u16,
        id: u32,
    }

    /// The list of what is at `path`; empty without one.
    #[cfg(target_os = "linux")]
    pub fn of(path: &Path) -> io::Result<Vec<u8>> {
        attribute(|list| rustix::fs::getxattr(path, NAME, list))
    }

    /// The list of an open file; empty without one.
    #[cfg(target_os = "linux")]
    pub fn of_open(file: &File) -> io::Result<Vec<u8>> {
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
    pub fn of(_: &Path) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of_open(_: &File) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The users and groups that the list names and lets write.
    pub fn writers(list: &[u8]) -> io::Result<Vec<OtherWriter>> {
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let unknown = || {
            io::Error::new(
                ErrorKind::InvalidData,
                "its access list is of an unknown version",
            )
        };
        let (version, entries) = list.split_first_chunk().ok_or_else(unknown)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(unknown());
        }
        let entry = |&[t0, t1, r0, r1, i0, i1, i2, i3]: &[u8; 8]| Entry {
            tag: u16::from_le_bytes([t0, t1]),
            rights: u16::from_le_bytes([r0, r1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        };
        let entries: Vec<Entry> = entries.as_chunks().0.iter().map(entry).collect();
        let mask = entries
            .iter()
            .find(|entry| entry.tag == MASK)
            .map_or(u16::MAX, |entry| entry.rights);
        let writers = entries
            .iter()
            .filter(|entry| entry.rights & mask & WRITE != 0);
        let writer = |entry: &Entry| match entry.tag {
            USER => Some(OtherWriter::ListedUser(entry.id)),
            GROUP => Some(OtherWriter::ListedGroup(entry.id)),
            _ => None,
        };
        Ok(writers.filter_map(writer).collect())
    }
}

/// The folders and links through which the system reaches a path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Way {
    /// Folders in which it looks up a name, the first one first.
    folders: Vec<PathBuf>,
    /// Links that it follows.
    links: Vec<PathBuf>,
}

impl Way {
    /// The way to the file at `path`.
    fn to(path: &Path) -> io::Result<Self> {
        let mut way = Self::default();
        let (mut at, mut ahead) = (PathBuf::from("/"), VecDeque::new());
        let parts = |path: &Path| {
            path.components()
                .map(|part| part.as_os_str().to_owned())
                .collect::<VecDeque<OsString>>()
        };
        ahead.extend(parts(&std::path::absolute(path)?));
        while let Some(part) = ahead.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::ParentDir) => {
                    at.pop();
                }
                Some(Component::Normal(name)) => {
                    if !way.folders.contains(&at) {
                        way.folders.push(at.clone());
                    }
                    let next = at.join(name);
                    if next.symlink_metadata()?.is_symlink() {
                        let mut target = parts(&next.read_link()?);
                        target.append(&mut ahead);
                        ahead = target;
                        way.links.push(next);
                        if way.links.len() > MOST_LINKS {
                            return Err(io::Error::other(
                                "too many links lead from one to the next",
                            ));
                        }
                    } else {
                        at = next;
                    }
                }
                Some(Component::RootDir) => at = PathBuf::from("/"),
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        Ok(way)
    }
}

/// Refuses the open file of a plugin, if somebody else may change it, or replace it: from a folder
/// above it or above a link on the way to it, or by such a link.
///
/// # Errors
///
/// When somebody else may. The message says who and where; `accept` is the flag that allows such a
/// file.
pub fn check(plugin: &Found, file: &Access, accept: &str) -> Result<()> {
    let refuse = |access: &Access, done: &str, of: Option<&str>, shown: &Path| -> Result<()> {
        let Some(other) = access.other_writer() else {
            return Ok(());
        };
        let it = of.unwrap_or("it");
        let its = |what: &str| {
            of.map_or_else(|| format!("its {what}"), |of| format!("the {what} of {of}"))
        };
        let mode = format!("{} is {:o}", its("mode"), access.metadata.mode() & 0o7777);
        let (why, advice) = match other {
            OtherWriter::Owner(_) => (format!("{it} is theirs"), "load a copy of your own"),
            OtherWriter::Group(_) => (mode, "`chmod g-w` takes that right away"),
            OtherWriter::Anybody => (mode, "`chmod o-w` takes that right away"),
            OtherWriter::ListedUser(_) | OtherWriter::ListedGroup(_) => (
                format!("{} names them", its("access list")),
                "`setfacl -b` removes the list",
            ),
        };
        bail!(
            "plugin `{}` may be {done} by {other}: {why} ({advice}; `{accept}` accepts it)",
            shown.display()
        )
    };
    let Found { named, path } = plugin;
    refuse(file, "changed", None, path)?;
    let way = Way::to(named)
        .with_context(|| format!("cannot examine the way to `{}`", named.display()))?;
    let cannot = |of: &Path| format!("cannot examine `{}`", of.display());
    for folder in way.folders.iter().rev() {
        let access = Access::of(folder).with_context(|| cannot(folder))?;
        // In a folder that is not above the file itself lies a link.
        let shown = if path.starts_with(folder) {
            path
        } else {
            named
        };
        refuse(
            &access,
            "replaced",
            Some(&format!("the folder `{}`", folder.display())),
            shown,
        )?;
    }
    for link in &way.links {
        let access = Access::of_link(link).with_context(|| cannot(link))?;
        refuse(
            &access,
            "replaced",
            Some(&format!("the link `{}`", link.display())),
            named,
        )?;
    }
    Ok(())
}

/// True if `group` is the private group of `user` or of root, by the lists `/etc/group` and
/// `/etc/passwd`. Such a group has the user's name, is the user's first group, and has no other
/// member. Systems with such groups let new files be group-writable.
///
/// Groups from a directory service are not in these lists, so they never count as private.
fn is_own_group(groups: &str, users: &str, group: u32, user: u32) -> bool {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let number = |field: Option<&String>| field.and_then(|field| field.parse::<u32>().ok());
    let groups: Vec<Vec<String>> = groups
        .lines()
        .map(fields)
        .filter(|line| number(line.get(2)) == Some(group))
        .collect();
    let first: Vec<Vec<String>> = users
        .lines()
        .map(fields)
        .filter(|line| number(line.get(3)) == Some(group))
        .collect();
    let ([listed], [member]) = (&groups[..], &first[..]) else {
        return false;
    };
    let is_trusted = number(member.get(2)).is_some_and(|id| id == user || id == 0);
    let others = listed
        .get(3)
        .map_or("", |names| names.as_str())
        .split(',')
        .filter(|name| !name.is_empty());
    is_trusted
        && listed[0] == member[0]
        && others
            .into_iter()
            .all(|name| name == member[0] || name == "root")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nben:x:1001:100::/home/ben:/bin/sh\n\
        cat:x:1002:1002::/home/cat:/bin/sh\ndan:x:1003:1003::/:/bin/sh\neve:x:1004:1003::/:/bin/sh\n";
    const GROUPS: &str =
        "root:x:0:\nann:x:1000:\nusers:x:100:\ncat:x:1002:ann\ndan:x:1003:\nshared:x:2000:\n";

    #[test]
    fn a_private_group_is_named_like_its_one_member() {
        let own = |group, user| is_own_group(GROUPS, USERS, group, user);
        assert!(
            own(1000, 1000) && own(0, 0) && own(0, 1000),
            "ann's and root's own"
        );
        assert!(!own(1000, 1001), "ann's is not ben's");
        assert!(
            !own(100, 1001),
            "`users` is nobody's own, though ben alone is listed"
        );
        assert!(!own(1002, 1002), "ann is in cat's group too");
        assert!(!own(1003, 1003), "dan's is eve's first one too");
        assert!(
            !own(2000, 1000) && !own(7, 1000),
            "an empty group and one that is not listed"
        );
        assert!(!is_own_group("", "", 1000, 1000));
    }

    #[test]
    fn modes_of_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libmine.so");
        fs::write(&file, "").unwrap();
        let of = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            Access::of(path).unwrap().other_writer()
        };
        assert_eq!(of(&file, 0o755), None);
        assert_eq!(
            of(&file, 0o1757),
            Some(OtherWriter::Anybody),
            "the sticky bit of a file means nothing"
        );
        assert_eq!(
            (of(folder.path(), 0o1777), of(folder.path(), 0o757)),
            (None, Some(OtherWriter::Anybody))
        );
        let group = fs::metadata(&file).unwrap().gid();
        assert!(
            [None, Some(OtherWriter::Group(group))].contains(&of(&file, 0o775)),
            "as this machine's lists say"
        );
    }

    #[test]
    fn what_another_user_owns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("libmine.so");
        fs::write(&path, "").unwrap();
        // Only root can change a file's owner.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let found = Found {
            named: path.clone(),
            path: path.clone(),
        };
        let check = || check(&found, &Access::of(&path).unwrap(), "--flag");
        let say = || {
            let error = check().unwrap_err().to_string();
            error.replace(
                &*folder.path().canonicalize().unwrap().to_string_lossy(),
                "FOLDER",
            )
        };
        std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by user 4321: it is theirs (load a copy of your own; `--flag` accepts it)"
        );
        std::os::unix::fs::chown(&path, Some(0), Some(4321)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o775)).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by group 4321: its mode is 775 (`chmod g-w` takes that right away; `--flag` accepts it)"
        );
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        check().unwrap();
        std::os::unix::fs::chown(folder.path(), Some(4321), None).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be replaced by user 4321: the folder `FOLDER` is theirs (load a copy of your own; `--flag` accepts it)"
        );
    }

    /// The attribute of an access list with these entries: kind, rights, id.
    fn list(entries: &[[u32; 3]]) -> Vec<u8> {
        let entry = |&[tag, rights, id]: &[u32; 3]| {
            [
                &tag.to_le_bytes()[..2],
                &rights.to_le_bytes()[..2],
                &id.to_le_bytes(),
            ]
            .concat()
        };
        [
            2_u32.to_le_bytes().to_vec(),
            entries.iter().flat_map(entry).collect(),
        ]
        .concat()
    }

    #[test]
    fn an_access_list_names_writers_that_no_mode_shows() {
        const NONE: u32 = u32::MAX;
        let [owner, group, others] = [[1, 7, NONE], [4, 5, NONE], [32, 5, NONE]];
        let writers = |entries: &[[u32; 3]]| acl::writers(&list(entries)).unwrap();
        assert_eq!(
            writers(&[
                owner,
                [2, 7, 65534],
                [2, 5, 3],
                group,
                [8, 2, 7],
                [16, 7, NONE],
                others
            ]),
            [OtherWriter::ListedUser(65534), OtherWriter::ListedGroup(7)]
        );
        assert_eq!(
            writers(&[owner, [2, 7, 65534], group, [16, 5, NONE], others]),
            [],
            "the mask takes it away"
        );
        assert_eq!(writers(&[owner, group, others]), []);
        assert_eq!(acl::writers(&[]).unwrap(), []);
        assert!(acl::writers(&[3, 0, 0, 0]).is_err() && acl::writers(&[2]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_its_access_list_gives_to_another() {
        const NONE: u32 = u32::MAX;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("libmine.so");
        fs::write(&path, "").unwrap();
        let give = |path: &Path, tag: u32, id: u32| {
            let given = list(&[
                [1, 7, NONE],
                [2, 7, id],
                [4, 5, NONE],
                [16, tag, NONE],
                [32, 5, NONE],
            ]);
            rustix::fs::setxattr(
                path,
                "system.posix_acl_access",
                &given,
                rustix::fs::XattrFlags::empty(),
            )
        };
        // Some file systems have no access lists.
        if give(&path, 7, 4321).is_err() {
            return;
        }
        let found = Found {
            named: path.clone(),
            path: path.clone(),
        };
        let check = || {
            check(
                &found,
                &Access::of_open(&File::open(&path).unwrap()).unwrap(),
                "--flag",
            )
        };
        let say = || {
            check()
                .unwrap_err()
                .to_string()
                .replace(&*path.parent().unwrap().to_string_lossy(), "FOLDER")
        };
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by user 4321: its access list names them (`setfacl -b` removes the list; `--flag` accepts it)"
        );
        give(&path, 5, 4321).unwrap();
        check().unwrap();
        give(path.parent().unwrap(), 7, 4321).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be replaced by user 4321: the access list of the folder `FOLDER` names them (`setfacl -b` removes the list; `--flag` accepts it)"
        );
    }

    #[test]
    fn the_way_goes_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir_all(at("real/inner")).unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::write(at("real/inner/libmine.so"), "").unwrap();
        std::os::unix::fs::symlink("../real/./inner", at("open/folder")).unwrap();
        std::os::unix::fs::symlink(at("open/folder/libmine.so"), at("liblink.so")).unwrap();
        let way = Way::to(&at("liblink.so")).unwrap();
        let folders: Vec<_> = way
            .folders
            .iter()
            .filter(|folder| folder.starts_with(&root))
            .collect();
        assert_eq!(
            folders,
            [&root, &at("open"), &at("real"), &at("real/inner")]
        );
        assert_eq!(way.links, [at("liblink.so"), at("open/folder")]);
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        assert!(Way::to(&at("circle")).is_err() && Way::to(&at("absent")).is_err());
    }
}
