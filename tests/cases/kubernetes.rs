//! Tests the Kubernetes manifests and the image: they match their schemas, use flags that exist, and contain the
//! shipped rules and alerts.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use end_to_end::exporter;
use end_to_end::fake::Scenario;
use end_to_end::leases::stdout_of;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use serde_json::{Value, json};

/// Kubernetes versions whose schemas the manifests must match. The first is the oldest version that supports
/// `appArmorProfile`.
const VERSIONS: [&str; 3] = ["1.30", "1.32", "1.37"];

/// Kinds that the Prometheus operator defines. Schemas for them are not available.
const OPERATORS_OWN: [&str; 2] = ["PodMonitor", "PrometheusRule"];

const VALIDATE: &str = "
import sys, yaml, kubernetes_validate
for manifest in yaml.safe_load_all(sys.stdin):
    if manifest['kind'] not in sys.argv[2:]:
        kubernetes_validate.validate(manifest, sys.argv[1], strict=True)
";

const TO_JSON: &str = "import sys, json, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";

fn directory() -> PathBuf {
    programs::root().join("config/kubernetes")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = programs::root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a Python script with a text on standard input.
fn python(script: &str, arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(programs::python());
    command.args(["-c", script]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn validated(version: &str, text: &str) -> Output {
    let arguments: Vec<&str> = std::iter::once(version).chain(OPERATORS_OWN).collect();
    python(VALIDATE, &arguments, text)
}

/// Returns a parsed manifest.
fn manifest(name: &str) -> Value {
    parsed(&read(directory().join("base").join(name))).swap_remove(0)
}

/// Returns the documents of a YAML text.
fn parsed(text: &str) -> Vec<Value> {
    serde_json::from_str(&stdout_of(&python(TO_JSON, &[], text))).unwrap()
}

/// Returns the files in the kustomization.
fn resources() -> Vec<String> {
    let listed = manifest("kustomization.yaml");
    listed["resources"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_manifest_matches_its_schema() {
    let texts: Vec<String> =
        resources().iter().map(|name| read(directory().join("base").join(name))).collect();
    for version in VERSIONS {
        let output = validated(version, &texts.join("\n---\n"));
        assert!(output.status.success(), "{version}: {output:?}");
    }
    let wrong = read(directory().join("base/daemon-set.yaml")).replace("hostPID: true", "hostPid: true");
    assert!(!validated("1.32", &wrong).status.success(), "the check would not detect a fault");
}

/// The test does not use a Docker daemon, so the image is not built.
#[test]
fn dockerfile_is_valid() {
    let hadolint = programs::python().with_file_name("hadolint");
    let reviewed = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("Dockerfile"), text).unwrap();
        Command::new(&hadolint).arg(directory.path().join("Dockerfile")).output().unwrap()
    };
    let dockerfile = read("packaging/Dockerfile");
    stdout_of(&reviewed(&dockerfile));
    assert!(
        !reviewed(&format!("{dockerfile}RUN cd /x\n")).status.success(),
        "the check would not detect a fault"
    );
}

/// Kustomize is part of kubectl, which is not installed on every machine.
#[test]
fn kustomize_builds_the_manifests() {
    for name in ["base", "example"] {
        let Ok(output) = Command::new("kubectl").arg("kustomize").arg(directory().join(name)).output() else {
            println!("kubectl is not installed: nothing was put together");
            return;
        };
        let text = stdout_of(&output);
        let valid = validated("1.32", &text);
        assert!(valid.status.success(), "{name}: {valid:?}");
        assert!(
            text.contains("name: bailiff-rules\n  namespace: bailiff\n"),
            "the name must not contain a hash, because the ConfigMap is updated in place"
        );
    }
}

#[test]
fn manifest_flags_exist() {
    let pod = &manifest("daemon-set.yaml")["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"], true);
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    for container in containers {
        let words = |key: &str| -> Vec<String> {
            container[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let program = words("command").concat();
        let program = programs::built(program.strip_prefix("/usr/bin/").unwrap());
        // Flags are parsed from left to right, and `--help` is printed only if all flags before it are valid.
        stdout_of(&Command::new(program).args(words("args")).arg("--help").output().unwrap());
        let port = container["ports"][0]["containerPort"].as_u64().unwrap();
        assert!(words("args").contains(&format!("--web.listen-address=:{port}")));
        assert_eq!(container["readinessProbe"]["httpGet"]["port"], container["name"]);
        // A user on the node could have the kubelet restart the containers.
        assert!(container.get("livenessProbe").is_none());
    }
}

/// Returns the manifests of a file of a component.
pub(crate) fn all_of_component(file: &str) -> Vec<Value> {
    parsed(&read(directory().join("components").join(file)))
}

/// Returns a file of a component, parsed.
fn of_component(file: &str) -> Value {
    all_of_component(file).swap_remove(0)
}

/// Returns the `DaemonSet` with a component, whose patches add to the base.
fn with_component(name: &str) -> Value {
    let mut pod = manifest("daemon-set.yaml");
    let component = of_component(&format!("{name}/kustomization.yaml"));
    let patch = component["patches"][0]["patch"].as_str().unwrap();
    for patch in parsed(patch)[0].as_array().unwrap() {
        assert_eq!(patch["op"], "add");
        let (parent, key) = patch["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let parent = pod.pointer_mut(parent).unwrap();
        match key {
            "-" => parent.as_array_mut().unwrap().push(patch["value"].clone()),
            key => parent[key] = patch["value"].clone(),
        }
    }
    for version in VERSIONS {
        let output = validated(version, &pod.to_string());
        assert!(output.status.success(), "{version}: {output:?}");
    }
    pod
}

/// Only the component gives a container a token, and only the container of `bailiff-kubernetes`.
#[test]
fn component_gives_one_container_a_token() {
    let base = manifest("daemon-set.yaml")["spec"]["template"]["spec"].clone();
    assert!(
        base["automountServiceAccountToken"] == false && !base.to_string().contains("Token\":{"),
        "{base}"
    );
    let pod = with_component("eviction");
    let spec = &pod["spec"]["template"]["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    let mounting = |volume: &str| -> Vec<&str> {
        let containers = spec["containers"].as_array().unwrap().iter();
        let has = |one: &&Value| {
            one["volumeMounts"].as_array().unwrap().iter().any(|mount| mount["name"] == volume)
        };
        containers.filter(has).map(|one| one["name"].as_str().unwrap()).collect()
    };
    assert_eq!(mounting("token"), ["kubernetes"]);
    // The process that serves HTTP could read the token of a process of the same user.
    assert!(!spec["containers"][0]["args"].to_string().contains("65533"));
    assert_eq!(mounting("kubernetes"), ["enforcer", "kubernetes"]);
    let container = spec["containers"].as_array().unwrap().last().unwrap();
    let context = &container["securityContext"];
    assert_eq!((&context["runAsUser"], &context["capabilities"]), (&65533.into(), &json!({"drop": ["ALL"]})));
    let program =
        programs::built(container["command"][0].as_str().unwrap().strip_prefix("/usr/bin/").unwrap());
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let help = stdout_of(&Command::new(program).args(args).arg("--help").output().unwrap());
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(help.contains(mount["mountPath"].as_str().unwrap()), "a default of the program: {mount}");
    }
}

#[test]
fn components_have_few_rights_and_policies_for_the_account() {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let evicts = [
        rule("", &["pods"], &["get"]),
        rule("", &["pods/eviction"], &["create"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ];
    let stops = [
        rule("", &["pods"], &["list"]),
        rule("apps", &["deployments", "replicasets", "statefulsets"], &["get"]),
        rule("apps", &["deployments/scale", "statefulsets/scale"], &["patch"]),
        rule("batch", &["jobs"], &["get", "patch"]),
        rule("kubeflow.org", &["notebooks"], &["get", "patch"]),
    ];
    let account = manifest("service-account.yaml");
    let caller = format!(
        "system:serviceaccount:{}:{}",
        account["metadata"]["namespace"].as_str().unwrap(),
        account["metadata"]["name"].as_str().unwrap()
    );
    for (component, rules) in [("eviction", json!(evicts)), ("stop-owner", json!(stops))] {
        assert_eq!(of_component(&format!("{component}/cluster-role.yaml"))["rules"], rules);
        let files = ["cluster-role.yaml", "role-binding.yaml", "admission-policy.yaml"];
        let text = |file: &&str| read(directory().join("components").join(component).join(file));
        let texts: Vec<String> = files.iter().map(text).collect();
        let output = validated("1.32", &texts.join("\n---\n"));
        assert!(output.status.success(), "{output:?}");
        assert!(texts[2].contains(&format!("'{caller}'")), "{caller}");
    }
}

/// Only the component gives the exporter access to the kubelet.
#[test]
fn component_gives_the_exporter_the_kubelets_socket() {
    assert!(!manifest("daemon-set.yaml").to_string().contains("kubelet"), "the base has fewer rights");
    let pod = with_component("allocation");
    let spec = &pod["spec"]["template"]["spec"];
    let args = spec["containers"][0]["args"].as_array().unwrap();
    let args: Vec<&str> = args.iter().map(|word| word.as_str().unwrap()).collect();
    let help = stdout_of(&Command::new(programs::exporter()).args(&args).arg("--help").output().unwrap());
    for (volume, directory) in
        [("pod-resources", "/var/lib/kubelet/pod-resources"), ("containers", "/var/log/containers")]
    {
        let named = |list: &Value| list.as_array().unwrap().iter().find(|one| one["name"] == volume).cloned();
        let mount = named(&spec["containers"][0]["volumeMounts"]).unwrap();
        assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&directory.into(), &true.into()));
        assert_eq!(named(&spec["volumes"]).unwrap()["hostPath"]["path"], directory);
    }
    assert!(args.contains(&"--pod-resources") && help.contains("/var/log/containers"), "{args:?}");
}

/// `web_user` runs the exporter with these capabilities.
#[test]
fn exporter_has_the_tested_capabilities() {
    let pod = &manifest("daemon-set.yaml")["spec"]["template"]["spec"];
    let exporter = &pod["containers"][0];
    assert!(exporter["args"].as_array().unwrap().contains(&"--web.user=65532".into()), "{exporter}");
    let context = &exporter["securityContext"];
    let expected = serde_json::json!({"drop": ["ALL"], "add": crate::web_user::CAPABILITIES});
    assert_eq!(context["capabilities"], expected);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert!(context.get("seccompProfile").is_none(), "the pod's profile applies");
}

/// The worst false reply of a Redis server that was found costs 300 MiB (docs/costs.md).
#[test]
fn memory_limits_leave_room_for_hostile_replies() {
    let pod = &manifest("daemon-set.yaml")["spec"]["template"]["spec"];
    for container in pod["containers"].as_array().unwrap() {
        let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
        assert!(limit.strip_suffix("Mi").unwrap().parse::<u32>().unwrap() > 300, "{container}");
    }
}

/// A container has its own cgroup namespace, and reads other containers' cgroup paths relative to its own.
#[test]
fn cgroups_are_recognised_from_inside_a_pod() {
    let (pod, container) = ("9c5b4a5e_7d1f_4f0e_9a3b_0a1b2c3d4e5f", "0123456789abcdef".repeat(4));
    let neighbour = format!("0::/../../kubepods-burstable-pod{pod}.slice/cri-containerd-{container}.scope\n");
    let job = "0::/../../../../system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n";
    let procfs = Procfs::new()
        .with(&Process { cgroup: neighbour, ..Process::new(4100) })
        .with(&Process { cgroup: job.into(), ..Process::new(4101) });
    let scenario = Scenario::named("busy");
    let mut command = exporter::command(&scenario);
    command.args(["--once", "--interval", "100ms", "--procfs"]).arg(procfs.path());
    let page = Page::read(&stdout_of(&command.output().unwrap()));
    let label = |pid, label| page.label("bailiff_process_info", &[("pid", pid)], label);
    assert_eq!(label("4100", "pod_uid"), Some(pod.replace('_', "-")));
    assert_eq!(label("4100", "runtime").as_deref(), Some("containerd"));
    assert_eq!(label("4101", "slurm_job").as_deref(), Some("4711"));
}

/// A pod cannot read the node's user names, so rules cannot match users by name.
#[test]
fn manifest_rules_are_the_shipped_without_user_names() {
    let without_users = |path: &Path| -> Vec<String> {
        let text = read(path);
        text.lines().filter(|line| !line.contains(" users: [")).map(str::to_owned).collect()
    };
    let base = directory().join("base/rules.yaml");
    assert_eq!(without_users(&base), without_users(Path::new("config/rules.yaml")), "copy it again");
    let example = directory().join("example/rules.yaml");
    for rules in [&base, &example] {
        let rules_of: Value = serde_json::from_str(&stdout_of(&python(TO_JSON, &[], &read(rules)))).unwrap();
        assert_eq!(rules_of["protect"].get("users"), None, "{}", rules.display());
    }
    stdout_of(&Command::new(programs::enforcer()).arg("check").arg(example).output().unwrap());
}

/// Most containers run as root, so running as root must not exempt them.
#[test]
fn rules_flag_root_only_in_pods() {
    let directory_of_tests = tempfile::tempdir().unwrap();
    let written = directory_of_tests.path().join("test.yaml");
    let (rules, container) = (directory().join("base/rules.yaml"), "0123456789abcdef".repeat(4));
    let text = format!(
        "rules: {}
interval: 5s
tests:
  - name: root in a container
    targets:
      - {{process: 4100, uid: 0, user: root, container: {container}, series: {{gpu_util: '0x361', cpu_util: '1x361'}}}}
      - {{process: 4200, uid: 0, user: root, series: {{gpu_util: '0x361', cpu_util: '1x361'}}}}
    expect:
      - {{at: {{sample: 360}}, rule: idle-workload, step: flag, target: 4100}}
    never:
      - {{target: 4200}}
",
        rules.display()
    );
    fs::write(&written, text).unwrap();
    stdout_of(&Command::new(programs::enforcer()).arg("test").arg(written).output().unwrap());
}

/// Tests the values that a pod can get only from the node: the node's name, and the machine id that lease holders
/// record.
#[test]
fn pod_receives_node_name_and_machine_id() {
    let pod = &manifest("daemon-set.yaml")["spec"]["template"]["spec"];
    let machine = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "machine-id");
    assert_eq!(machine.unwrap()["hostPath"]["path"], "/etc/machine-id");
    for container in pod["containers"].as_array().unwrap() {
        let of = |key: &str, name: &str| {
            container[key].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone()
        };
        let mount = of("volumeMounts", "machine-id");
        assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&"/etc/machine-id".into(), &true.into()));
        assert_eq!(of("env", "BAILIFF_NODE_NAME")["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    }
}

/// Returns the groups of a Prometheus rules file, indented.
fn groups(path: &str) -> String {
    let text = read(path);
    let (_, groups) = text.split_once("\ngroups:\n").unwrap();
    groups.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect()
}

#[test]
fn manifest_alerts_are_the_tested_ones() {
    let made = format!(
        "# Made from alerts/alerts.yaml and recording.yaml by `make golden`.\n\
         apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: bailiff\n  namespace: bailiff\n\
         spec:\n  groups:\n{}{}",
        groups("alerts/alerts.yaml"),
        groups("alerts/recording.yaml")
    );
    let path = directory().join("base/prometheus-rule.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(read(&path) == made, "alerts has changed: `make golden` renews {}", path.display());
}
