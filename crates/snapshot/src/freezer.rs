//! Files that show whether a process's cgroup is frozen, for example by `docker pause`.

/// Path below the cgroup mount point, and the line that the file contains while the cgroup is frozen.
pub type File = (String, &'static str);

/// Returns the files that show whether a process with this `/proc/PID/cgroup` is frozen. Omits root cgroups,
/// which cannot be frozen, and paths outside the mount (from another cgroup namespace).
pub fn files(cgroup: &str) -> Vec<File> {
    let mut files = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = path.trim_matches('/');
        if path.is_empty() || path.split('/').any(|part| part == "..") {
            continue;
        }
        if names.is_empty() {
            // Version 2 is mounted on its own, or as `unified` alongside version 1.
            files.push((format!("{path}/cgroup.events"), "frozen 1"));
            files.push((format!("unified/{path}/cgroup.events"), "frozen 1"));
        } else if names.split(',').any(|name| name == "freezer") {
            files.push((format!("freezer/{path}/freezer.state"), "FROZEN"));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_each_version_of_cgroups() {
        let cases = [
            ("0::/a/b\n", "a/b/cgroup.events unified/a/b/cgroup.events"),
            ("6:freezer:/docker/x\n1:name=systemd:/docker/x\n0::/\n", "freezer/docker/x/freezer.state"),
            ("6:cpu,freezer:/x\n", "freezer/x/freezer.state"),
            ("0::/\n6:freezer:/\n", ""),
            ("0::/../../x\n6:freezer:/a/../b\n", ""),
            ("nonsense\n0\n", ""),
        ];
        for (text, expected) in cases {
            let found: Vec<String> = files(text).into_iter().map(|(path, _)| path).collect();
            assert_eq!(found.join(" "), expected, "{text}");
        }
    }
}
