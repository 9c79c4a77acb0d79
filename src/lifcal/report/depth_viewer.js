"use strict";
(() => {
  // Image, depth, sigma and cloud of a frame, and scenes of all. Maps come as two bytes of a color image.
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const image = by("image"), map = by("depth"), spread = by("sigma"), reading = by("reading");
  const UNKNOWN = [205, 205, 205], MARKS = ["#ff5a36", "#35c8ff"];
  const PIXEL_VARIANCE = 1 / 12; // of a place within a pixel, px^2
  let frame = null; // of what is shown: rows, cols, depth and sigma in mm (0 unknown), colors
  let marks = []; // places that were clicked, [x, y] in pixels of this page

  const load = (kind, text) => new Promise((done, fail) => {
    const picture = new Image();
    picture.onload = () => done(picture);
    picture.onerror = () => fail(new Error("picture cannot be read"));
    picture.src = `data:image/${kind};base64,${text}`;
  });
  function pixels(picture, cols, rows) {
    const canvas = document.createElement("canvas");
    canvas.width = cols; canvas.height = rows;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(picture, 0, 0, cols, rows);
    return context.getImageData(0, 0, cols, rows).data;
  }
  const share = (value, low, high) => Math.min(Math.max((value - low) / (high - low), 0), 1);
  const colorOf = (z) => data.colors[Math.round(share(z, data.near_mm, data.far_mm) * (data.colors.length - 1))];
  const sigmaColorOf = (s) => data.sigma_colors[Math.round(share(s, data.sigma_low_mm, data.sigma_high_mm) * (data.sigma_colors.length - 1))];
  function unpack(bytes, count, unit) {
    const values = new Float32Array(count);
    for (let i = 0; i < count; i++) values[i] = (256 * bytes[4 * i] + bytes[4 * i + 1]) * unit;
    return values;
  }
  function paint(values, color, cols, rows) {
    const canvas = document.createElement("canvas"), out = new ImageData(cols, rows);
    canvas.width = cols; canvas.height = rows;
    values.forEach((value, i) => out.data.set([...(value > 0 ? color(value) : UNKNOWN), 255], 4 * i));
    canvas.getContext("2d").putImageData(out, 0, 0);
    return canvas;
  }

  let wanted = 0;
  async function show(index) {
    const entry = data.frames[index], { rows, cols } = entry, ticket = ++wanted;
    const [picture, split, sigmas] = await Promise.all([load("jpeg", entry.image), load("png", entry.depth),
      entry.sigma ? load("png", entry.sigma) : null]);
    if (ticket !== wanted) return;
    const depth = unpack(pixels(split, cols, rows), rows * cols, data.unit_mm);
    const sigma = sigmas && unpack(pixels(sigmas, cols, rows), rows * cols, data.sigma_unit_mm);
    frame = { rows, cols, depth, sigma, name: entry.name, colors: pixels(picture, cols, rows), picture,
      depthPicture: paint(depth, colorOf, cols, rows), sigmaPicture: sigma && paint(sigma, sigmaColorOf, cols, rows) };
    by("sigma-figure").hidden = !sigma;
    marks = [];
    drawFlat(); measure();
    by("frames").querySelectorAll("button").forEach((b, i) => b.setAttribute("aria-pressed", String(i === index)));
    if (by("what").value === "frame") cloud.fill(frame);
    document.body.dataset.ready = "yes";
  }

  function drawFlat() {
    for (const [canvas, picture] of [[image, frame.picture], [map, frame.depthPicture], [spread, frame.sigmaPicture]]) {
      if (!picture) continue;
      const scale = Math.max(1, Math.ceil(800 / frame.cols)); // so that marks are finer than pixels
      canvas.width = frame.cols * scale; canvas.height = frame.rows * scale;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = canvas === image;
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      const places = marks.map(([x, y]) => [(x + 0.5) * scale, (y + 0.5) * scale]), size = canvas.width / 40;
      if (places.length === 2) {
        for (const [style, width] of [["#000", size / 4], ["#fff", size / 9]]) {
          context.strokeStyle = style; context.lineWidth = width; context.beginPath();
          context.moveTo(...places[0]); context.lineTo(...places[1]); context.stroke();
        }
      }
      places.forEach(([x, y], i) => {
        for (const [style, width] of [["#000", size / 3], [MARKS[i], size / 6]]) {
          context.strokeStyle = style; context.lineWidth = width; context.beginPath();
          context.moveTo(x - size, y); context.lineTo(x + size, y); context.moveTo(x, y - size); context.lineTo(x, y + size); context.stroke();
        }
      });
    }
  }

  // Places, depths and lengths

  function at(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * frame.cols);
    const y = Math.floor(((event.clientY - box.top) / box.height) * frame.rows);
    return [Math.min(Math.max(x, 0), frame.cols - 1), Math.min(Math.max(y, 0), frame.rows - 1)];
  }
  function look([x, y]) { // ray, depth and its sigma at a pixel
    const i = y * frame.cols + x;
    return { z: frame.depth[i], sigma: frame.sigma && frame.sigma[i] > 0 ? frame.sigma[i] : null, ray: [(x - data.cx) / data.fx, (y - data.cy) / data.fy, 1] };
  }
  const inImage = (v) => v * data.step + Math.floor(data.step / 2);
  const digits = (sigma) => (sigma > 0 ? Math.min(Math.max(1 - Math.floor(Math.log10(sigma)), 0), 3) : 1);
  const withSigma = (value, sigma) => (sigma === null ? `${value.toFixed(1)} mm` : `${value.toFixed(digits(sigma))} ± ${sigma.toFixed(digits(sigma))} mm`);
  function describe(place) {
    const { z, sigma, ray } = look(place), where = `x ${inImage(place[0])}, y ${inImage(place[1])} px`;
    return z > 0 ? `${where}: depth ${withSigma(z, sigma)}; X ${(ray[0] * z).toFixed(1)}, Y ${(ray[1] * z).toFixed(1)}, Z ${z.toFixed(1)} mm`
      : `${where}: depth is unknown here.`;
  }
  function lengthBetween(first, second) {
    const ends = [look(first), look(second)], points = ends.map(({ z, ray }) => ray.map((v) => v * z));
    const apart = points[0].map((v, i) => v - points[1][i]), length = Math.hypot(...apart);
    if (!(length > 0)) return { length: 0, sigma: null };
    const along = apart.map((v) => v / length);
    let variance = 0, known = true;
    for (const { z, sigma, ray } of ends) {
      const pull = along[0] * ray[0] + along[1] * ray[1] + along[2];
      variance += PIXEL_VARIANCE * ((along[0] * z / data.fx) ** 2 + (along[1] * z / data.fy) ** 2);
      if (sigma === null) known = false; else variance += (pull * sigma) ** 2;
    }
    return { length, sigma: known ? Math.sqrt(variance) : null };
  }
  function measure() {
    const box = by("measured"), text = document.createElement("strong");
    if (!marks.length) text.textContent = "Click two points to measure between them.";
    else if (marks.length === 1) text.textContent = `First point: ${describe(marks[0])}. Click the second point.`;
    else {
      const { length, sigma } = lengthBetween(...marks);
      text.textContent = `Distance ${withSigma(length, sigma)}${sigma === null ? " (sigma unknown)" : ""}`;
    }
    box.replaceChildren(text);
    if (marks.length === 2) box.append(` between (${marks.map((m) => m.map(inImage).join(", ")).join(") and (")}) px of ${frame.name}`);
  }
  for (const canvas of [image, map, spread]) {
    canvas.addEventListener("pointermove", (event) => { if (frame) reading.textContent = describe(at(canvas, event)); });
    canvas.addEventListener("click", (event) => {
      if (!frame) return;
      const place = at(canvas, event);
      reading.textContent = describe(place);
      if (!(look(place).z > 0)) { by("measured").textContent = "Depth is unknown there: click another place."; return; }
      if (marks.length === 2) marks = [];
      marks.push(place);
      drawFlat(); measure();
    });
  }
  by("forget").addEventListener("click", () => { marks = []; drawFlat(); measure(); });

  function drawBar(bar, low, high, color) {
    const ratio = window.devicePixelRatio || 1, width = bar.clientWidth, height = bar.clientHeight;
    if (!width) return;
    bar.width = width * ratio; bar.height = height * ratio;
    const context = bar.getContext("2d");
    context.scale(ratio, ratio);
    const margin = 30, inner = width - 2 * margin, span = high - low;
    for (let x = 0; x < inner; x++) {
      context.fillStyle = `rgb(${color(low + (span * x) / inner)})`;
      context.fillRect(margin + x, 4, 1.5, 16);
    }
    const rough = span / Math.max(inner / 75, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((k) => k * power >= rough);
    context.fillStyle = "#333"; context.font = "12px system-ui, sans-serif"; context.textAlign = "center";
    for (let z = Math.ceil(low / step) * step; z <= high; z += step) {
      const x = margin + (inner * (z - low)) / span;
      context.fillRect(x, 20, 1, 4);
      context.fillText(`${Number(z.toPrecision(4))} mm`, x, 38);
    }
  }
  function drawBars() {
    drawBar(by("bar"), data.near_mm, data.far_mm, colorOf);
    drawBar(by("sigma-bar"), data.sigma_low_mm, data.sigma_high_mm, sigmaColorOf);
  }

  const cloud = (() => {
    const canvas = by("cloud");
    const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
    if (!gl) {
      canvas.replaceWith("This browser has no WebGL: open the clouds in CloudCompare or MeshLab.");
      return { fill() {}, fillScene() {} };
    }
    const compile = (kind, text) => {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text); gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      return shader;
    };
    const program = gl.createProgram();
    gl.attachShader(program, compile(gl.VERTEX_SHADER,
      "attribute vec3 place; attribute vec3 color; uniform mat4 view; uniform float size; varying vec3 tint;" +
      "void main() { gl_Position = view * vec4(place, 1.0); gl_PointSize = size; tint = color; }"));
    gl.attachShader(program, compile(gl.FRAGMENT_SHADER,
      "precision mediump float; varying vec3 tint; void main() { gl_FragColor = vec4(tint, 1.0); }"));
    gl.linkProgram(program); gl.useProgram(program);
    const buffers = ["place", "color"].map((name) => {
      const buffer = gl.createBuffer(), at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer); gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, 3, gl.FLOAT, false, 0, 0);
      return buffer;
    });
    const middle = (data.near_mm + data.far_mm) / 2;
    const indices = gl.createBuffer();
    let count = 0, corners = 0, yaw, pitch, away, shift, shown = null;
    let center = [0, 0, middle], distance = middle; // what is turned about, and from how far it is seen
    // turned, the scene is wider than it was for the camera: a narrow window looks from farther
    const reset = () => {
      yaw = 0.25; pitch = -0.18; shift = [0, 0];
      away = Math.max(1, Math.min(1.6, (1.5 * canvas.clientHeight) / canvas.clientWidth));
    };
    reset();

    function draw() {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = canvas.clientWidth * ratio; canvas.height = canvas.clientHeight * ratio;
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clearColor(0.98, 0.985, 0.99, 1); gl.enable(gl.DEPTH_TEST); gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
      // turn about the middle of the scene, seen from where the camera was
      const [c, s, d, t] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
      const rows = [[c, 0, s], [t * s, d, -t * c], [-d * s, t, d * c]];
      const back = distance * away, reach = distance * 0.6;
      const lens = 1.15 * Math.max(data.fx / frame0.cols, 0.6), wide = canvas.width / canvas.height;
      const near = 0.01 * distance, far = 20 * distance;
      const move = rows.map((r) => -(r[0] * center[0] + r[1] * center[1] + r[2] * center[2]));
      move[0] += shift[0] * reach; move[1] += shift[1] * reach; move[2] += back;
      const m = new Float32Array(16);
      for (let k = 0; k < 4; k++) {
        const [x, y, z] = k < 3 ? rows.map((r) => r[k]) : move;
        m[4 * k] = (2 * lens * x) / Math.max(wide, 1);
        m[4 * k + 1] = -2 * lens * y * Math.min(wide, 1);
        m[4 * k + 2] = ((far + near) / (far - near)) * z - (k === 3 ? (2 * far * near) / (far - near) : 0);
        m[4 * k + 3] = z;
      }
      gl.uniformMatrix4fv(gl.getUniformLocation(program, "view"), false, m);
      gl.uniform1f(gl.getUniformLocation(program, "size"), Number(by("size").value) * ratio);
      if (corners) gl.drawElements(gl.TRIANGLES, corners, gl.UNSIGNED_SHORT, 0);
      else gl.drawArrays(gl.POINTS, 0, count);
    }
    function send(places, colors) {
      count = places.length / 3;
      [places, colors].forEach((values, i) => {
        gl.bindBuffer(gl.ARRAY_BUFFER, buffers[i]);
        gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(values), gl.STATIC_DRAW);
      });
    }
    const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    function fillScene(scene) {
      shown = scene;
      const packed = new Uint16Array(bytesOf(scene.places).buffer), tints = bytesOf(scene.colors), tinted = by("by-depth").checked;
      const places = Float32Array.from(packed, (v, i) => v * scene.unit_mm + scene.low_mm[i % 3]);
      const axes = [0, 1, 2].map((k) => places.filter((_, i) => i % 3 === k).sort());
      const part = (axis, q) => axis[Math.round(q * (axis.length - 1))];
      center = axes.map((axis) => part(axis, 0.5));
      const radius = Math.hypot(...axes.map((axis) => part(axis, 0.95) - part(axis, 0.05))) / 2;
      // from where the first camera was, or so far that all is seen
      distance = Math.max(1.25 * center[2], 1.4 * radius, 1e-3);
      const colors = Float32Array.from(tints, (v) => v / 255);
      if (tinted) {
        const [low, high] = [part(axes[2], 0.01), part(axes[2], 0.99)];
        for (let i = 0; i < places.length / 3; i++) {
          const rgb = data.colors[Math.round(share(places[3 * i + 2], low, high) * (data.colors.length - 1))];
          colors.set(rgb.map((v) => v / 255), 3 * i);
        }
      }
      send(places, colors);
      corners = 0;
      if (scene.triangles) {
        const list = new Uint16Array(bytesOf(scene.triangles).buffer);
        gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, indices); gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, list, gl.STATIC_DRAW);
        corners = list.length;
      }
      draw();
    }
    const frame0 = data.frames[0];
    function fill(frame) {
      shown = frame;
      const places = [], colors = [], tinted = by("by-depth").checked;
      for (let y = 0; y < frame.rows; y++) for (let x = 0; x < frame.cols; x++) {
        const i = y * frame.cols + x, z = frame.depth[i];
        if (!(z > 0)) continue;
        places.push(((x - data.cx) / data.fx) * z, ((y - data.cy) / data.fy) * z, z);
        const rgb = tinted ? colorOf(z) : [frame.colors[4 * i], frame.colors[4 * i + 1], frame.colors[4 * i + 2]];
        colors.push(rgb[0] / 255, rgb[1] / 255, rgb[2] / 255);
      }
      center = [0, 0, middle]; distance = middle; corners = 0;
      send(places, colors);
      draw();
    }
    const held = new Map();
    canvas.addEventListener("pointerdown", (e) => {
      held.set(e.pointerId, [e.clientX, e.clientY]);
      try { canvas.setPointerCapture(e.pointerId); } catch { /* it is gone already */ }
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => held.delete(e.pointerId));
    canvas.addEventListener("pointermove", (e) => {
      const before = held.get(e.pointerId);
      if (!before) return;
      const now = [e.clientX, e.clientY], dx = (now[0] - before[0]) / canvas.clientHeight, dy = (now[1] - before[1]) / canvas.clientHeight;
      if (e.shiftKey || e.buttons === 4) shift = [shift[0] + 1.5 * dx * away, shift[1] + 1.5 * dy * away];
      else { yaw -= 2.5 * dx; pitch = Math.min(Math.max(pitch + 2.5 * dy, -1.5), 1.5); }
      if (held.size === 2) {
        const other = [...held].find(([id]) => id !== e.pointerId)[1], apart = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        away = Math.min(Math.max(away * apart(before) / apart(now), 0.1), 8);
      }
      held.set(e.pointerId, now);
      draw();
    });
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); away = Math.min(Math.max(away * 1.0015 ** e.deltaY, 0.1), 8); draw(); }, { passive: false });
    canvas.addEventListener("dblclick", () => { reset(); draw(); });
    canvas.addEventListener("keydown", (e) => {
      const turn = { ArrowLeft: [0.08, 0], ArrowRight: [-0.08, 0], ArrowUp: [0, -0.08], ArrowDown: [0, 0.08] }[e.key];
      if (turn) { yaw += turn[0]; pitch = Math.min(Math.max(pitch + turn[1], -1.5), 1.5); }
      else if (e.key === "+" || e.key === "-") away = Math.min(Math.max(away * (e.key === "+" ? 0.9 : 1.1), 0.1), 8);
      else return;
      e.preventDefault(); draw();
    });
    by("size").addEventListener("input", draw);
    by("by-depth").addEventListener("change", () => shown && (shown.places ? fillScene(shown) : fill(shown)));
    window.addEventListener("resize", draw);
    return { fill, fillScene };
  })();

  data.frames.forEach((entry, i) => {
    const button = document.createElement("button");
    button.textContent = entry.name;
    button.addEventListener("click", () => show(i));
    by("frames").append(button);
  });
  const what = by("what");
  what.append(new Option("cloud of this frame", "frame"), ...data.scenes.map((scene, i) => new Option(scene.name, String(i))));
  what.addEventListener("change", () => {
    if (what.value === "frame") cloud.fill(frame); else cloud.fillScene(data.scenes[Number(what.value)]);
  });
  window.addEventListener("resize", drawBars);
  drawBars();
  show(Math.floor(data.frames.length / 2));
})();
