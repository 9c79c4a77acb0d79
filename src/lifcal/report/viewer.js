"use strict";
for (const button of document.querySelectorAll(".command button")) button.addEventListener("click", async () => {
  const code = button.previousElementSibling;
  try { await navigator.clipboard.writeText(code.textContent); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(code); button.textContent = "selected"; }
});
(() => {
  // The rig in 3D: drag turns, wheel zooms, arrows and + - do the same.
  const canvas = document.getElementById("rig");
  if (!canvas) return;
  const data = JSON.parse(document.getElementById("rig-data").textContent);
  const context = canvas.getContext("2d");
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
  const unit = (a) => { const n = Math.hypot(...a) || 1; return a.map((v) => v / n); };
  const column = (m, j) => m.map((row) => row[j]);
  const add = (a, b, k) => a.map((v, i) => v + k * b[i]);

  const cameras = data.cameras.map((c) => ({ name: c.name, at: column(c.world_from_cam, 3),
    x: column(c.world_from_cam, 0), y: column(c.world_from_cam, 1), z: column(c.world_from_cam, 2) }));
  const mean = (key) => unit(cameras.reduce((sum, c) => add(sum, c[key], 1), [0, 0, 1e-9]));
  const forward = mean("z");
  const right = unit(cross(mean("y"), forward));
  const down = cross(forward, right);

  // the middle 96 % of the points and all cameras fill the picture
  const low = [], high = [];
  for (let i = 0; i < 3; i++) {
    const values = data.points.map((p) => p[i]).sort((a, b) => a - b);
    const cut = Math.floor(0.02 * values.length);
    const inner = values.slice(cut, values.length - cut).concat(cameras.map((c) => c.at[i]));
    low.push(inner.reduce((a, b) => Math.min(a, b), Infinity));
    high.push(inner.reduce((a, b) => Math.max(a, b), -Infinity));
  }
  const center = low.map((v, i) => (v + high[i]) / 2);
  const radius = Math.hypot(...low.map((v, i) => high[i] - v)) / 2 || 1;
  const depths = data.points.map((p) => dot(forward, p));
  const sorted = depths.slice().sort((a, b) => a - b);
  const near = sorted[Math.floor(0.02 * sorted.length)], far = sorted[Math.floor(0.98 * (sorted.length - 1))];
  const colors = depths.map((d) => {
    const t = Math.min(Math.max((d - near) / (far - near || 1), 0), 1);
    return `rgb(${data.colors[Math.round(t * (data.colors.length - 1))]})`;
  });
  // frustums as large as the distance to the nearest other camera allows
  const gaps = cameras.map((c) => cameras.reduce((least, o) =>
    o === c ? least : Math.min(least, Math.hypot(...add(o.at, c.at, -1))), Infinity)).sort((a, b) => a - b);
  const gap = gaps[Math.floor(gaps.length / 2)];
  const size = Math.min(Math.max(0.4 * gap, 0.012 * radius), 0.05 * radius);

  let yaw, pitch, zoom = 0, shift, pointed = null, width = 0, height = 0;
  function reset() { // turn to a view from above; all cameras and 98 % of the points fill the canvas
    yaw = 0.65; pitch = -0.4; zoom = 1; shift = [0, 0];
    const points = data.points.map(project).filter((q) => q), ends = cameras.map((c) => project(c.at)).filter((q) => q);
    const box = [0, 1].map((i) => {
      const values = points.map((q) => q[i]).sort((a, b) => a - b), cut = Math.floor(0.01 * values.length);
      const kept = values.slice(cut, values.length - cut).concat(ends.map((q) => q[i]));
      return [kept.reduce((a, b) => Math.min(a, b), Infinity), kept.reduce((a, b) => Math.max(a, b), -Infinity)];
    });
    zoom = 0.84 * Math.min(width / (box[0][1] - box[0][0] || 1), height / (box[1][1] - box[1][0] || 1));
    shift = [width / 2, height / 2].map((half, i) => (half - (box[i][0] + box[i][1]) / 2) * zoom);
  }

  function project(p) {
    const d = p.map((v, i) => v - center[i]);
    const a = dot(d, right), b = dot(d, down), c = dot(d, forward);
    const x = Math.cos(yaw) * a + Math.sin(yaw) * c, depth = -Math.sin(yaw) * a + Math.cos(yaw) * c;
    const y = Math.cos(pitch) * b + Math.sin(pitch) * depth;
    const z = -Math.sin(pitch) * b + Math.cos(pitch) * depth;
    const k = zoom * 0.5 * Math.min(width, height) / radius / (1 + z / (5 * radius));
    return k > 0 ? [width / 2 + shift[0] + k * x, height / 2 + shift[1] + k * y] : null;
  }
  function lines(color, thickness, segments) {
    context.strokeStyle = color; context.lineWidth = thickness; context.beginPath();
    for (const [from, to] of segments) {
      const a = project(from), b = project(to);
      if (a && b) { context.moveTo(...a); context.lineTo(...b); }
    }
    context.stroke();
  }
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth; height = canvas.clientHeight;
    if (!zoom) reset();
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const side = data.points.length < 500 ? 3.6 : 2.2;
    data.points.forEach((p, i) => {
      const q = project(p);
      if (q) { context.fillStyle = colors[i]; context.fillRect(q[0] - side / 2, q[1] - side / 2, side, side); }
    });
    lines("#9aa5b1", 1, cameras.slice(1).map((c, i) => [cameras[i].at, c.at]));
    const [tx, ty] = data.half_view;
    const length = size / Math.max(tx, ty, 0.3);
    const edges = [];
    for (const c of cameras) {
      const corners = [[-tx, -ty], [tx, -ty], [tx, ty], [-tx, ty]].map(([a, b]) =>
        add(add(add(c.at, c.z, length), c.x, a * length), c.y, b * length));
      corners.forEach((corner, i) => edges.push([c.at, corner], [corner, corners[(i + 1) % 4]]));
    }
    lines("#24415c", 1, edges);
    if (cameras.length) lines("#c22f21", 2, [[cameras[0].at, add(cameras[0].at, cameras[0].z, 2 * length)]]);
    drawLegend();
    if (pointed) {
      const q = project(pointed.at);
      context.fillStyle = "#c22f21"; context.font = "13px system-ui, sans-serif";
      context.beginPath(); context.arc(q[0], q[1], 4, 0, 7); context.fill();
      context.fillText(pointed.name, Math.min(q[0] + 8, width - 8 - context.measureText(pointed.name).width), q[1] - 8);
    }
  }
  function drawLegend() {
    // axes of the world, and a length at the middle of the scene
    context.font = "12px system-ui, sans-serif";
    const turned = (d) => {
      const a = dot(d, right), b = dot(d, down), c = dot(d, forward);
      const depth = -Math.sin(yaw) * a + Math.cos(yaw) * c;
      return [Math.cos(yaw) * a + Math.sin(yaw) * c, Math.cos(pitch) * b + Math.sin(pitch) * depth];
    };
    [["x", "#c22f21"], ["y", "#1a7f5a"], ["z", "#0b6aa8"]].forEach(([name, color], i) => {
      const d = turned([0, 1, 2].map((j) => (i === j ? 1 : 0)));
      context.strokeStyle = context.fillStyle = color; context.lineWidth = 2;
      context.beginPath(); context.moveTo(44, height - 44);
      context.lineTo(44 + 28 * d[0], height - 44 + 28 * d[1]); context.stroke();
      context.fillText(name, 41 + 37 * d[0], height - 40 + 37 * d[1]);
    });
    const scale = zoom * 0.5 * Math.min(width, height) / radius;
    const wanted = 0.2 * width / scale, power = 10 ** Math.floor(Math.log10(wanted));
    const step = [5, 2, 1].find((f) => f * power <= wanted) * power;
    context.strokeStyle = context.fillStyle = "#333"; context.beginPath();
    context.moveTo(width - 20 - step * scale, height - 18); context.lineTo(width - 20, height - 18); context.stroke();
    const text = `${Number(step.toPrecision(3))} ${data.unit}`;
    context.fillText(text, width - 20 - context.measureText(text).width, height - 24);
  }

  let frame = 0;
  const redraw = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); };
  const held = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, [event.offsetX, event.offsetY]);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => held.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const now = [event.offsetX, event.offsetY], before = held.get(event.pointerId);
    if (before) {
      if (held.size === 2) { // two fingers zoom
        const other = [...held].find(([id]) => id !== event.pointerId)[1];
        const distance = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        zoomBy(distance(now) / distance(before));
        turn((before[0] - now[0]) * 0.004, (before[1] - now[1]) * 0.004);
      } else { turn((before[0] - now[0]) * 0.008, (before[1] - now[1]) * 0.008); }
      held.set(event.pointerId, now);
    } else {
      pointed = null; let best = 12;
      for (const c of cameras) {
        const q = project(c.at), d = q ? Math.hypot(q[0] - now[0], q[1] - now[1]) : Infinity;
        if (d < best) { best = d; pointed = c; }
      }
    }
    redraw();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault(); zoomBy(Math.exp(-0.0012 * event.deltaY)); redraw();
  }, { passive: false });
  canvas.addEventListener("dblclick", () => { reset(); redraw(); });
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
    if (keys[event.key]) { turn(...keys[event.key]); event.preventDefault(); }
    else if (event.key === "+") zoomBy(1.2);
    else if (event.key === "-") zoomBy(1 / 1.2);
    else return;
    redraw();
  });
  function zoomBy(k) { zoom *= k; shift = shift.map((v) => v * k); }
  function turn(a, b) { yaw += a; pitch = Math.min(Math.max(pitch + b, -1.57), 1.57); }
  draw();
  new ResizeObserver(redraw).observe(canvas);
})();
