"use strict";
(async () => {
  const by = (id) => document.getElementById(id);
  const COLORS = ["#ff5a36", "#35c8ff"];
  const canvas = by("image"), context = canvas.getContext("2d");
  const message = by("message"), reading = by("reading");
  let state, frame = 0, points = [], chosen = -1, found = null, asked = 0;
  let picture = null, unknown = null, cursor = null; // cursor: cross of the keyboard, in image px
  let zoom = 1, left = 0, top = 0; // image px at the canvas' corner; zoom: screen px of an image px

  async function call(name, content) {
    const options = content === undefined ? {} :
      { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
    let reply;
    try { reply = await fetch(name, options); }
    catch { throw new Error("lifcal pick has ended: start it again in the terminal"); }
    const body = await reply.json();
    if (!reply.ok) throw new Error(body.error);
    return body;
  }
  const say = (text, kind) => { message.textContent = text; message.className = kind || ""; };
  const load = (address) => new Promise((done, fail) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => fail(new Error("the image cannot be read"));
    image.src = address;
  });
  const pictures = new Map();
  function fetchPicture(index) {
    if (!pictures.has(index)) {
      if (pictures.size > 24) pictures.delete(pictures.keys().next().value);
      pictures.set(index, load(`image?frame=${index}`));
    }
    return pictures.get(index);
  }

  // The image: pixel centers are integers, so the image begins at -0.5

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const toImage = (x, y) => [x / zoom + left - 0.5, y / zoom + top - 0.5];
  const toScreen = ([x, y]) => [(x + 0.5 - left) * zoom, (y + 0.5 - top) * zoom];
  const fitZoom = () => Math.min(canvas.clientWidth / state.width, canvas.clientHeight / state.height);
  function hold() { // the image stays in sight
    zoom = clamp(zoom, fitZoom(), 40);
    const spanX = canvas.clientWidth / zoom, spanY = canvas.clientHeight / zoom;
    left = spanX >= state.width ? (state.width - spanX) / 2 : clamp(left, 0, state.width - spanX);
    top = spanY >= state.height ? (state.height - spanY) / 2 : clamp(top, 0, state.height - spanY);
    canvas.classList.toggle("zoomed", zoom > 1.01 * fitZoom());
    by("zoom").textContent = `${Math.round(100 * zoom)} %`;
  }
  function zoomAt(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const before = [x / zoom + left, y / zoom + top];
    zoom = clamp(zoom * factor, fitZoom(), 40);
    left = before[0] - x / zoom; top = before[1] - y / zoom;
    redraw();
  }
  let waiting = 0;
  function redraw() { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); }
  function drawCross(target, x, y, color, label, size = 11) {
    target.lineWidth = 3.5; target.strokeStyle = "rgba(0,0,0,0.75)";
    for (let pass = 0; pass < 2; pass++) {
      target.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        target.moveTo(x + 3 * dx, y + 3 * dy); target.lineTo(x + size * dx, y + size * dy);
      }
      target.stroke();
      target.lineWidth = 1.6; target.strokeStyle = color;
    }
    if (label) {
      target.font = "bold 14px system-ui, sans-serif"; target.lineWidth = 3; target.strokeStyle = "rgba(0,0,0,0.75)";
      target.strokeText(label, x + 8, y - 8); target.fillStyle = color; target.fillText(label, x + 8, y - 8);
    }
  }
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio; canvas.height = canvas.clientHeight * ratio;
    hold();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingEnabled = zoom < 6;
    const [x, y] = [-left * zoom, -top * zoom];
    if (picture) context.drawImage(picture, x, y, state.width * zoom, state.height * zoom);
    if (unknown && by("shade").checked) {
      context.imageSmoothingEnabled = false;
      context.drawImage(unknown, x, y, state.width * zoom, state.height * zoom);
    }
    for (const each of state.distances) if (each.frame === frame) {
      const [a, b] = [toScreen(each.first), toScreen(each.second)];
      context.setLineDash([5, 4]); context.lineWidth = 1.5; context.strokeStyle = "#ffe14d";
      context.beginPath(); context.moveTo(...a); context.lineTo(...b); context.stroke(); context.setLineDash([]);
      context.font = "13px system-ui, sans-serif"; context.lineWidth = 3; context.strokeStyle = "rgba(0,0,0,0.8)";
      const at = [(a[0] + b[0]) / 2 + 5, (a[1] + b[1]) / 2 - 5], text = `${each.mm} mm`;
      context.strokeText(text, ...at); context.fillStyle = "#ffe14d"; context.fillText(text, ...at);
    }
    if (points.length === 2) {
      context.lineWidth = 1.5; context.strokeStyle = "#fff"; context.beginPath();
      context.moveTo(...toScreen(points[0])); context.lineTo(...toScreen(points[1])); context.stroke();
    }
    points.forEach((point, i) => drawCross(context, ...toScreen(point), COLORS[i], String(i + 1)));
    if (cursor) drawCross(context, ...toScreen(cursor), "#ffffff", "", 18);
  }

  // Points

  async function change() {
    found = null;
    by("chosen").textContent = chosen < 0 ? "–" : String(chosen + 1);
    check(); redraw();
    const ticket = ++asked;
    if (!points.length) { showViews(); return; }
    try {
      const answer = await call("locate", { frame, points });
      if (ticket !== asked) return;
      found = answer;
    } catch (error) {
      if (ticket === asked) say(error.message, "warn");
      return;
    }
    check(); showViews();
  }
  function check() { // say what is there and what is missing
    const bad = found ? found.points.map((p, i) => (p.known === false ? i + 1 : 0)).filter((i) => i) : [];
    by("add").disabled = points.length < 2 || bad.length > 0;
    const place = (i) => `point ${i + 1} at ${points[i][0].toFixed(1)}, ${points[i][1].toFixed(1)}` +
      (found && found.points[i].depth_mm !== null ? `, depth ${found.points[i].depth_mm} mm` : "");
    reading.className = "how"; reading.textContent = "";
    if (!points.length) reading.textContent = "Click two points whose distance you know. Zoom in to hit them well.";
    else if (bad.length) {
      reading.className = "how warn";
      reading.textContent = `Depth is unknown at point ${bad.join(" and ")}: a calibration cannot use it. Pick a place with texture, outside the hatched parts.`;
    } else {
      let text = points.map((_, i) => place(i)).join("; ") + ".";
      if (points.length < 2) text += " Click the second point.";
      if (found && found.length_mm !== null) text += ` By this calibration they are ${found.length_mm} mm apart.`;
      if (found && found.points.some((p) => p.known === null)) text += " The depth maps were removed, so this page cannot tell whether depth is known here.";
      reading.textContent = text[0].toUpperCase() + text.slice(1);
    }
  }
  function pick(place) {
    if (!picture) return;
    if (place[0] < -0.5 || place[1] < -0.5 || place[0] > state.width - 0.5 || place[1] > state.height - 0.5) return;
    const point = place.map((v) => Math.round(100 * v) / 100);
    say("");
    if (points.length === 2) points = [];
    points.push(point); chosen = points.length - 1;
    if (points.length === 2 && !matchMedia("(pointer: coarse)").matches && document.activeElement !== canvas) by("mm").focus({ preventScroll: true });
    change();
  }
  function nudge(dx, dy) {
    if (chosen < 0) return;
    const [x, y] = points[chosen];
    points[chosen] = [clamp(x + dx, -0.5, state.width - 0.5), clamp(y + dy, -0.5, state.height - 0.5)];
    change();
  }
  function clear() { points = []; chosen = -1; cursor = null; say(""); change(); }

  async function show(index, keep) {
    frame = index;
    picture = unknown = null; // nothing is picked in the picture of another frame
    by("frame").value = String(index);
    if (!keep) { points = []; chosen = -1; }
    redraw();
    const ticket = index;
    let image, mask;
    try {
      [image, mask] = await Promise.all([fetchPicture(index), state.maps ? load(`unknown?frame=${index}`) : null]);
    } catch (error) {
      pictures.delete(index);
      if (ticket === frame) say(error.message, "warn");
      return;
    }
    if (ticket !== frame) return;
    picture = image; unknown = mask && hatch(mask);
    document.body.dataset.shown = String(index);
    change();
  }
  function hatch(mask) { // a see-through picture of lines where depth is unknown
    const out = document.createElement("canvas");
    out.width = mask.width; out.height = mask.height;
    const target = out.getContext("2d", { willReadFrequently: true });
    target.drawImage(mask, 0, 0);
    const bytes = target.getImageData(0, 0, out.width, out.height);
    for (let i = 0; i < out.width * out.height; i++) {
      const bad = bytes.data[4 * i] > 127, line = (i % out.width + Math.floor(i / out.width)) % 6 < 2;
      bytes.data.set(bad ? [255, 60, 160, line ? 190 : 70] : [0, 0, 0, 0], 4 * i);
    }
    target.putImageData(bytes, 0, 0);
    return out;
  }

  // Other views

  async function showViews() {
    const box = by("views"), how = by("others-how");
    box.replaceChildren();
    if (!state.posed.length) {
      how.textContent = "Poses are not known before a calibration, so the points cannot be shown in other views yet. " +
        "Calibrate once (without a scale is fine), and run lifcal pick on that folder.";
      return;
    }
    if (!state.posed.includes(frame)) { how.textContent = "This frame has no pose: pick in another one."; return; }
    how.textContent = points.length
      ? "Each square is 40 px of another view. The cross must be on the same thing in all of them; where it is not, depth is wrong there or something else is in front."
      : "Pick a point to see where the calibration puts it in other views.";
    if (!found) return;
    const ticket = asked;
    for (const [i, point] of found.points.entries()) for (const view of point.views) {
      const image = await fetchPicture(view.frame);
      if (ticket !== asked) return;
      const figure = document.createElement("figure"), crop = document.createElement("canvas");
      crop.width = crop.height = 160;
      const target = crop.getContext("2d");
      target.imageSmoothingEnabled = false;
      target.drawImage(image, view.x + 0.5 - 20, view.y + 0.5 - 20, 40, 40, 0, 0, 160, 160);
      drawCross(target, 80, 80, COLORS[i], String(i + 1));
      figure.append(crop, `point ${i + 1} in ${state.frames[view.frame]}`);
      crop.setAttribute("aria-label", `point ${i + 1} in frame ${state.frames[view.frame]}`);
      box.append(figure);
    }
  }

  // The file

  function showList() {
    by("file").textContent = state.file;
    const list = by("list");
    list.replaceChildren();
    if (!state.distances.length) { list.textContent = "None yet."; return; }
    const table = document.createElement("table");
    for (const each of state.distances) {
      const row = table.insertRow();
      row.insertCell().textContent = each.name;
      row.insertCell().textContent = `${each.mm} ± ${Number(each.sigma.toPrecision(2))} mm`;
      const cell = row.insertCell();
      const button = (text, title, act) => {
        const made = document.createElement("button");
        made.type = "button"; made.textContent = text; made.title = title; made.addEventListener("click", act);
        cell.append(made, " ");
      };
      if (each.frame !== null) button("show", "Show it in its frame", () => show(each.frame));
      else row.cells[0].append(" (not in this folder)");
      button("×", "Remove it from the file", async () => {
        try { Object.assign(state, await call("remove", each)); say("Removed.", "done"); }
        catch (error) { say(error.message, "warn"); }
        showList(); redraw();
      });
    }
    list.append(table);
  }
  by("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (points.length < 2) return;
    const sigma = by("sigma").value.trim();
    by("add").disabled = true;
    try {
      Object.assign(state, await call("add", { frame, points, mm: Number(by("mm").value), sigma: sigma ? Number(sigma) : null }));
      points = []; chosen = -1; by("mm").value = "";
      say(`Written to the file: ${state.distances.length} in all.`, "done");
      showList(); change();
    } catch (error) { say(error.message, "warn"); check(); }
  });
  by("copy").addEventListener("click", async () => {
    const text = by("command").textContent;
    try { await navigator.clipboard.writeText(text); by("copy").textContent = "copied"; }
    catch { getSelection().selectAllChildren(by("command")); by("copy").textContent = "selected: press Ctrl-C"; }
  });

  // Hands: mouse, fingers, keys

  const held = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    if (!held.size) moved = 0;
    held.set(event.pointerId, [event.offsetX, event.offsetY]);
    cursor = null;
    try { canvas.setPointerCapture(event.pointerId); } catch { /* it is gone already */ }
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (!before) return;
    const now = [event.offsetX, event.offsetY], dx = now[0] - before[0], dy = now[1] - before[1];
    moved += Math.hypot(dx, dy);
    if (held.size === 2) {
      const other = [...held].find(([id]) => id !== event.pointerId)[1];
      const apart = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
      moved += 10;
      zoomAt(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (moved > 4) { left -= dx / zoom; top -= dy / zoom; redraw(); }
    held.set(event.pointerId, now);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held.delete(event.pointerId) && !held.size && moved <= 4) pick(toImage(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointercancel", (event) => held.delete(event.pointerId));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomAt(Math.exp(-0.0015 * event.deltaY), event.offsetX, event.offsetY);
  }, { passive: false });
  const step = (by) => show((frame + by + state.frames.length) % state.frames.length);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT/.test(event.target.tagName)) return;
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (arrows && event.target === canvas) {
      const size = event.shiftKey ? 10 : zoom > 3 ? 0.5 : 1;
      const [x, y] = cursor || toImage(canvas.clientWidth / 2, canvas.clientHeight / 2);
      cursor = [clamp(x + size * arrows[0], 0, state.width - 1), clamp(y + size * arrows[1], 0, state.height - 1)];
      const at = toScreen(cursor);
      if (at[0] < 20 || at[0] > canvas.clientWidth - 20) left = cursor[0] - canvas.clientWidth / zoom / 2;
      if (at[1] < 20 || at[1] > canvas.clientHeight - 20) top = cursor[1] - canvas.clientHeight / zoom / 2;
      redraw();
    } else if (event.key === "Enter" && event.target === canvas && cursor) pick(cursor);
    else if (event.key === "+" || event.key === "=") cursor ? zoomAt(1.4, ...toScreen(cursor)) : zoomAt(1.4);
    else if (event.key === "-") zoomAt(1 / 1.4);
    else if (event.key === "0") { zoom = 0; redraw(); }
    else if (event.key === "n" || event.key === "N") step(1);
    else if (event.key === "p" || event.key === "P") step(-1);
    else if (event.key === "Escape") clear();
    else return;
    event.preventDefault();
  });
  by("in").addEventListener("click", () => zoomAt(1.5));
  by("out").addEventListener("click", () => zoomAt(1 / 1.5));
  by("fit").addEventListener("click", () => { zoom = 0; redraw(); });
  by("before").addEventListener("click", () => step(-1));
  by("after").addEventListener("click", () => step(1));
  by("clear").addEventListener("click", clear);
  by("shade").addEventListener("change", redraw);
  by("frame").addEventListener("change", () => show(Number(by("frame").value)));
  for (const button of document.querySelectorAll("[data-move]"))
    button.addEventListener("click", () => nudge(...button.dataset.move.split(",").map(Number)));

  try { state = await call("state"); }
  catch (error) { say(error.message, "warn"); return; }
  by("about").textContent = `${state.frames.length} focused images of ${state.folder}. Drag moves, the wheel or two fingers zoom, a click sets a point. ` +
    "Keys: arrows move a cross, Enter sets a point, + and - zoom, N and P change the frame, Escape starts again.";
  by("command").textContent = state.command;
  state.frames.forEach((name, i) => by("frame").append(new Option(name, String(i))));
  showList();
  new ResizeObserver(redraw).observe(canvas);
  await show(state.distances.length && state.distances[0].frame !== null ? state.distances[0].frame : Math.floor(state.frames.length / 2));
  document.body.dataset.ready = "yes";
})();
