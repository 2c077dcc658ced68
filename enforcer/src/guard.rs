//! The last question before a deed: are these the processes that were judged, and may they be touched at all.
//! Pure: who they are now is looked up elsewhere, and comes in.

/// Names that no rule may touch, as the kernel cuts them (15 bytes), and why. A star stands for any rest.
const PROTECTED: [(&str, &str); 44] = [
    ("systemd*", "it is a part of systemd"),
    ("(sd-pam)", "it is a part of systemd"),
    ("(systemd)", "it is a part of systemd"),
    ("init", "it is an init"),
    ("tini", "it is an init"),
    ("sshd*", "it carries sessions"),
    ("login", "it carries sessions"),
    ("dbus-daemon", "it is a message bus"),
    ("dbus-broker*", "it is a message bus"),
    ("containerd", "it is a container runtime"),
    ("containerd-shim*", "it is a container runtime"),
    ("dockerd", "it is a container runtime"),
    ("docker-proxy", "it is a container runtime"),
    ("docker-init", "it is a container runtime"),
    ("cri-dockerd", "it is a container runtime"),
    ("runc*", "it is a container runtime"),
    ("crun*", "it is a container runtime"),
    ("conmon*", "it is a container runtime"),
    ("crio", "it is a container runtime"),
    ("kubelet", "it is Kubernetes"),
    ("k3s-*", "it is Kubernetes"),
    ("slurmd", "it is Slurm"),
    ("slurmstepd", "it is Slurm"),
    ("slurmctld", "it is Slurm"),
    ("slurmdbd", "it is Slurm"),
    ("munged", "it is Slurm's"),
    ("nvidia-persiste*", "it serves the driver"),
    ("nv-fabricmanage*", "it serves the driver"),
    ("nvidia-fabricma*", "it serves the driver"),
    ("nv-hostengine", "it is DCGM"),
    ("dcgm*", "it is DCGM"),
    ("nvidia-dcgm", "it is DCGM"),
    ("nvidia-cuda-mps*", "it serves the clients of MPS"),
    ("Xorg*", "it is a display server"),
    ("X", "it is a display server"),
    ("Xwayland", "it is a display server"),
    ("gnome-shell", "it is a display server"),
    ("kwin_*", "it is a display server"),
    ("mutter*", "it is a display server"),
    ("sway", "it is a display server"),
    ("Hyprland", "it is a display server"),
    ("weston*", "it is a display server"),
    ("gamescope*", "it is a display server"),
    ("bailiff-*", "it is one of ours"),
];

/// What the built-in protection looks at, of a process as a snapshot or `/proc` shows it.
#[derive(Debug, Clone, Copy)]
pub struct Traits<'a> {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub comm: &'a str,
    /// Its owner.
    pub uid: Option<u32>,
    /// It runs in a container.
    pub contained: bool,
}

/// Why the built-in protection spares a process, whatever rules say; none where it does not.
#[must_use]
pub fn builtin(process: &Traits<'_>, root: Root) -> Option<&'static str> {
    if process.pid <= 1 {
        return Some("it is the first process of all");
    }
    match process.uid {
        None => return Some("its owner is not known"),
        Some(0) if !process.contained && root == Root::Protected => {
            return Some("it is root's, outside a container");
        }
        Some(_) => {}
    }
    // The kernel has cut it; a name from elsewhere is cut alike.
    let comm = process.comm.get(..15).unwrap_or(process.comm);
    let named = PROTECTED.iter().find(|(name, _)| match name.strip_suffix('*') {
        Some(start) => comm.starts_with(start),
        None => comm == *name,
    });
    named.map(|(_, why)| *why)
}

/// Whether root's processes outside containers are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// They are.
    Protected,
    /// The file says `allow_root: true`.
    Allowed,
}
