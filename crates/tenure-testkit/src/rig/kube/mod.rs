//! A Kubernetes API server for Leases, as far as electors know one.
//!
//! Versions and conflicts, uids, lists in parts whose items do not say what they are, label selectors, watches with bookmarks, 410 for what is forgotten, content types,
//! validation and the removal of what is unknown are as the real server has them; and it has bad days on demand. It keeps everything in memory, and
//! listens on a port of its own.

mod faults;
mod real;
mod select;
mod serve;
mod validate;
mod world;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use self::faults::Faults;
pub use self::faults::KubeFault;
pub use self::real::real_kubernetes;
use self::serve::Shared;
use self::world::World;

/// The token in the kubeconfig.
const TOKEN: &str = "the-rig-lets-us-in";

/// Who makes and changes objects by hand.
const KUBECTL: &str = "kubectl";

/// An API server that lives as long as this value.
///
/// ```
/// let api = tenure_testkit::rig::KubeApi::start().unwrap();
/// assert!(api.url("prod").starts_with("k8s:prod?kubeconfig="));
/// assert_eq!(api.lease("prod", "nightly"), None);
/// ```
pub struct KubeApi {
    shared: Arc<Shared>,
    folder: tempfile::TempDir,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KubeApi {
    /// Starts one on a free port.
    pub fn start() -> io::Result<KubeApi> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            world: Mutex::default(),
            faults: Mutex::default(),
            moved: watch::channel(0).0,
            told: AtomicU64::new(0),
            closed: watch::channel(0).0,
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve::serve(listener, serving) => {}
                }
            });
            runtime.shutdown_background();
        });
        let folder = tempfile::tempdir()?;
        let api = KubeApi { shared, folder, address, stop: Some(stop), thread: Some(thread) };
        api.let_in("config", &json!({ "token": TOKEN }))?;
        Ok(api)
    }

    /// The token that is let in.
    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// Writes a kubeconfig of this name whose user has these credentials.
    pub fn let_in(&self, file: &str, user: &Value) -> io::Result<PathBuf> {
        let path = self.folder.path().join(file);
        std::fs::write(&path, self.config(user))?;
        Ok(path)
    }

    fn config(&self, user: &Value) -> String {
        let cluster = json!({ "name": "rig", "cluster": { "server": format!("http://{}", self.address) } });
        let context =
            json!({ "name": "rig", "context": { "cluster": "rig", "user": "rig", "namespace": "default" } });
        let user = json!({ "name": "rig", "user": user });
        // JSON is YAML too.
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "rig",
            "clusters": [cluster], "contexts": [context], "users": [user],
        })
        .to_string()
    }

    /// A file by which it is found: for `$KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// The address of a namespace as a store.
    pub fn url(&self, namespace: &str) -> String {
        format!("k8s:{namespace}?kubeconfig={}", self.kubeconfig().display())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Lease, as `kubectl get -o json` shows it.
    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        let reply = self.world().get(namespace, name);
        (reply.status == 200).then_some(reply.body)
    }

    /// All Leases of a namespace.
    pub fn leases(&self, namespace: &str) -> Vec<Value> {
        let world = self.world();
        world.leases.iter().filter(|((of, _), _)| of == namespace).map(|(_, object)| object.clone()).collect()
    }

    /// Makes a Lease; the status and the answer.
    pub fn create(&self, namespace: &str, object: Value) -> (u16, Value) {
        let reply = self.world().create(namespace, object, KUBECTL);
        self.shared.tell();
        (reply.status, reply.body)
    }

    /// Replaces a Lease, if its version is the last one; the status and the answer.
    pub fn update(&self, namespace: &str, name: &str, object: Value) -> (u16, Value) {
        let reply = self.world().update(namespace, name, object, KUBECTL);
        self.shared.tell();
        (reply.status, reply.body)
    }

    /// Changes a Lease whatever its version is, as `kubectl patch --type=merge` does.
    pub fn patch(&self, namespace: &str, name: &str, patch: &Value) -> u16 {
        let reply = self.world().patch(namespace, name, patch, KUBECTL);
        self.shared.tell();
        reply.status
    }

    /// Deletes a Lease, as `kubectl delete` does.
    pub fn delete(&self, namespace: &str, name: &str) -> bool {
        let reply = self.world().delete(namespace, name);
        self.shared.tell();
        reply.status == 200
    }

    /// A pod that can be labelled.
    pub fn add_pod(&self, namespace: &str, name: &str) {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace, "labels": {} } });
        self.world().pods.insert((namespace.into(), name.into()), pod);
    }

    /// A label of a pod.
    pub fn pod_label(&self, namespace: &str, name: &str, key: &str) -> Option<String> {
        let world = self.world();
        let pod = world.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        pod["metadata"]["labels"][key].as_str().map(str::to_owned)
    }

    /// From now on only these namespaces are there.
    pub fn only_namespaces(&self, namespaces: &[&str]) {
        self.world().namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    }

    /// Forgets what happened until now: watches and lists that begin or go on before it are answered with 410.
    pub fn compact(&self) {
        self.world().compact();
    }

    /// Closes all watches.
    pub fn close_watches(&self) {
        self.shared.closed.send_modify(|count| *count += 1);
    }

    /// From now on, a request of this verb (`get`, `list`, `watch`, `create`, `update`, `patch`, or `*`) on an object whose name contains this
    /// goes wrong, so many times.
    pub fn fail(&self, verb: &str, name: &str, fault: KubeFault, times: u32) {
        self.faults().add(verb, name, fault, times);
    }

    /// Does something, once, when a request of this verb on the object of this name has arrived, and before it is served: whatever it
    /// was worked out from may be otherwise then.
    pub fn before(&self, verb: &str, name: &str, act: impl FnOnce() + Send + 'static) {
        self.faults().hook(verb, name, Box::new(act));
    }

    /// No request goes wrong any more.
    pub fn heal(&self) {
        self.faults().clear();
        self.shared.closed.send_modify(|_| {});
    }

    /// Takes a verb away from everybody, as a role without it does; `leases` or `pods`.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.faults().deny(verb, resource);
    }

    /// Knows nobody any more, or everybody again.
    pub fn lock_out(&self, is_locked: bool) {
        self.faults().locked = is_locked;
    }

    /// The requests since the last call: verb and name.
    pub fn requests(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.faults().requests)
    }

    /// How many objects were in answers to lists since the last call.
    pub fn listed(&self) -> u64 {
        std::mem::take(&mut self.world().listed)
    }

    /// How much was told to all who watch since the last call, bookmarks aside.
    pub fn told(&self) -> u64 {
        self.shared.told.swap(0, Ordering::Relaxed)
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
