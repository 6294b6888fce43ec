//! Checks who may change a file or replace it. The rule is that of `ssh` for its own files: only the user
//! and root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Somebody other than this user and root who may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherWriter {
    /// The owner, by user id.
    User(u32),
    /// A group that may write, by group id.
    Group(u32),
    /// Everybody.
    Anybody,
}

impl std::fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(f, "user {id}"),
            Self::Group(id) => write!(f, "group {id}"),
            Self::Anybody => f.write_str("any user"),
        }
    }
}

/// Returns who else may write the file or folder of `metadata`: its owner, its group or everybody, checked in this order. In a folder with
/// the sticky bit, such as `/tmp`, only the folder's owner may replace files of others.
pub fn other_writer(metadata: &Metadata) -> Option<OtherWriter> {
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let (mode, owner, group) = (metadata.mode(), metadata.uid(), metadata.gid());
    let user = rustix::process::geteuid().as_raw();
    if owner != 0 && owner != user {
        return Some(OtherWriter::User(owner));
    }
    if metadata.is_dir() && mode & STICKY != 0 {
        return None;
    }
    if mode & OTHERS_WRITE != 0 {
        return Some(OtherWriter::Anybody);
    }
    let list = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if mode & GROUP_WRITES != 0 && !is_own_group(&list("/etc/group"), &list("/etc/passwd"), group, user) {
        return Some(OtherWriter::Group(group));
    }
    None
}

/// Refuses the open file at the absolute `path`, of the kind `what`, if somebody else may change it or replace it from a folder above it.
///
/// # Errors
///
/// When somebody else may. The message says who and where; `accept` is the flag that allows such a file.
pub fn check(what: &str, path: &Path, file: &Metadata, accept: &str) -> Result<()> {
    let shown = path.display();
    let refuse = |metadata: &Metadata, done: &str, it: &str, its_mode: &str| -> Result<()> {
        let Some(other) = other_writer(metadata) else { return Ok(()) };
        let mode = metadata.mode() & 0o7777;
        let (why, advice) = match other {
            OtherWriter::User(_) => (format!("{it} is theirs"), "load a copy of your own"),
            OtherWriter::Group(_) => (format!("{its_mode} is {mode:o}"), "`chmod g-w` takes that right away"),
            OtherWriter::Anybody => (format!("{its_mode} is {mode:o}"), "`chmod o-w` takes that right away"),
        };
        bail!("{what} `{shown}` may be {done} by {other}: {why} ({advice}; `{accept}` accepts it)")
    };
    refuse(file, "changed", "it", "its mode")?;
    for folder in path.ancestors().skip(1) {
        let named = folder.display();
        let metadata = std::fs::metadata(folder).with_context(|| format!("cannot examine `{named}`"))?;
        let its_mode = format!("the mode of the folder `{named}`");
        refuse(&metadata, "replaced", &format!("the folder `{named}`"), &its_mode)?;
    }
    Ok(())
}

/// True if `group` is the private group of `user` or of root, by the lists `/etc/group` and `/etc/passwd`. Such a group has the user's
/// name, is the user's first group, and has no other member. Systems with such groups let new files be group-writable.
///
/// Groups from a directory service are not in these lists, so they never count as private.
fn is_own_group(groups: &str, users: &str, group: u32, user: u32) -> bool {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let number = |field: Option<&String>| field.and_then(|field| field.parse::<u32>().ok());
    let groups: Vec<Vec<String>> =
        groups.lines().map(fields).filter(|line| number(line.get(2)) == Some(group)).collect();
    let first: Vec<Vec<String>> = users.lines().map(fields).filter(|line| number(line.get(3)) == Some(group)).collect();
    let ([listed], [member]) = (&groups[..], &first[..]) else { return false };
    let is_trusted = number(member.get(2)).is_some_and(|id| id == user || id == 0);
    let others = listed.get(3).map_or("", |names| names.as_str()).split(',').filter(|name| !name.is_empty());
    is_trusted && listed[0] == member[0] && others.into_iter().all(|name| name == member[0] || name == "root")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nben:x:1001:100::/home/ben:/bin/sh\n\
        cat:x:1002:1002::/home/cat:/bin/sh\ndan:x:1003:1003::/:/bin/sh\neve:x:1004:1003::/:/bin/sh\n";
    const GROUPS: &str = "root:x:0:\nann:x:1000:\nusers:x:100:\ncat:x:1002:ann\ndan:x:1003:\nshared:x:2000:\n";

    #[test]
    fn a_private_group_is_named_like_its_one_member() {
        let own = |group, user| is_own_group(GROUPS, USERS, group, user);
        assert!(own(1000, 1000) && own(0, 0) && own(0, 1000), "ann's and root's own");
        assert!(!own(1000, 1001), "ann's is not ben's");
        assert!(!own(100, 1001), "`users` is nobody's own, though ben alone is listed");
        assert!(!own(1002, 1002), "ann is in cat's group too");
        assert!(!own(1003, 1003), "dan's is eve's first one too");
        assert!(!own(2000, 1000) && !own(7, 1000), "an empty group and one that is not listed");
        assert!(!is_own_group("", "", 1000, 1000));
    }

    #[test]
    fn modes_of_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libmine.so");
        fs::write(&file, "").unwrap();
        let of = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            other_writer(&fs::metadata(path).unwrap())
        };
        assert_eq!(of(&file, 0o755), None);
        assert_eq!(of(&file, 0o1757), Some(OtherWriter::Anybody), "the sticky bit of a file means nothing");
        assert_eq!((of(folder.path(), 0o1777), of(folder.path(), 0o757)), (None, Some(OtherWriter::Anybody)));
        let group = fs::metadata(&file).unwrap().gid();
        assert!([None, Some(OtherWriter::Group(group))].contains(&of(&file, 0o775)), "as this machine's lists say");
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
        let say = || {
            let error = check("plugin", &path, &fs::metadata(&path).unwrap(), "--flag").unwrap_err().to_string();
            error.replace(&*folder.path().canonicalize().unwrap().to_string_lossy(), "FOLDER")
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
        check("plugin", &path, &fs::metadata(&path).unwrap(), "--flag").unwrap();
        std::os::unix::fs::chown(folder.path(), Some(4321), None).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be replaced by user 4321: the folder `FOLDER` is theirs (load a copy of your own; `--flag` accepts it)"
        );
    }
}
