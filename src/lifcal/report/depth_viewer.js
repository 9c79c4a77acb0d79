"use strict";
(() => {
  // Image, depth map and cloud of a frame. Depth comes as two bytes of a color image.
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const image = by("image"), map = by("depth"), bar = by("bar"), reading = by("reading");
  let frame = null; // of what is shown: rows, cols, depth in mm (0 unknown), colors

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
  const share = (z) => Math.min(Math.max((z - data.near_mm) / (data.far_mm - data.near_mm), 0), 1);
  const colorOf = (z) => data.colors[Math.round(share(z) * (data.colors.length - 1))];

  async function show(index) {
    const entry = data.frames[index], { rows, cols } = entry;
    const [picture, split] = await Promise.all([load("jpeg", entry.image), load("png", entry.depth)]);
    const bytes = pixels(split, cols, rows);
    const depth = new Float32Array(rows * cols);
    for (let i = 0; i < depth.length; i++) depth[i] = (256 * bytes[4 * i] + bytes[4 * i + 1]) * data.unit_mm;
    frame = { rows, cols, depth, colors: pixels(picture, cols, rows) };
    for (const canvas of [image, map]) { canvas.width = cols; canvas.height = rows; }
    image.getContext("2d").drawImage(picture, 0, 0, cols, rows);
    const out = new ImageData(cols, rows);
    depth.forEach((z, i) => out.data.set([...(z > 0 ? colorOf(z) : [205, 205, 205]), 255], 4 * i));
    map.getContext("2d").putImageData(out, 0, 0);
    by("frames").querySelectorAll("button").forEach((b, i) => b.setAttribute("aria-pressed", String(i === index)));
    cloud.fill(frame);
  }

  function drawBar() {
    const ratio = window.devicePixelRatio || 1, width = bar.clientWidth, height = bar.clientHeight;
    bar.width = width * ratio; bar.height = height * ratio;
    const context = bar.getContext("2d");
    context.scale(ratio, ratio);
    const margin = 34, inner = width - 2 * margin, span = data.far_mm - data.near_mm;
    for (let x = 0; x < inner; x++) {
      context.fillStyle = `rgb(${colorOf(data.near_mm + (span * x) / inner)})`;
      context.fillRect(margin + x, 4, 1.5, 16);
    }
    const rough = span / Math.max(inner / 75, 4), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((k) => k * power >= rough);
    context.fillStyle = "#333"; context.font = "12px system-ui, sans-serif"; context.textAlign = "center";
    for (let z = Math.ceil(data.near_mm / step) * step; z <= data.far_mm; z += step) {
      const x = margin + (inner * (z - data.near_mm)) / span;
      context.fillRect(x, 20, 1, 4);
      context.fillText(`${Math.round(z * 10) / 10} mm`, x, 38);
    }
  }

  for (const canvas of [image, map]) {
    canvas.addEventListener("pointermove", (event) => {
      if (!frame) return;
      const box = canvas.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * frame.cols);
      const y = Math.floor(((event.clientY - box.top) / box.height) * frame.rows);
      const z = frame.depth[Math.min(Math.max(y, 0), frame.rows - 1) * frame.cols + Math.min(Math.max(x, 0), frame.cols - 1)];
      reading.textContent = z > 0
        ? `Depth ${z.toFixed(1)} mm; X ${(((x - data.cx) / data.fx) * z).toFixed(1)} mm, Y ${(((y - data.cy) / data.fy) * z).toFixed(1)} mm`
        : "Depth is not known here.";
    });
  }

  const cloud = (() => {
    const canvas = by("cloud");
    const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
    if (!gl) {
      canvas.replaceWith("This browser has no WebGL: open the clouds in CloudCompare or MeshLab.");
      return { fill() {} };
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
    const middle = (data.near_mm + data.far_mm) / 2, reach = middle * 0.6;
    let count = 0, yaw, pitch, away, shift, shown = null;
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
      const back = middle * away;
      const lens = 1.15 * Math.max(data.fx / frame0.cols, 0.6), wide = canvas.width / canvas.height;
      const near = 0.01 * middle, far = 20 * middle;
      const move = rows.map((r) => -r[2] * middle);
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
      gl.drawArrays(gl.POINTS, 0, count);
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
      count = places.length / 3;
      [places, colors].forEach((values, i) => {
        gl.bindBuffer(gl.ARRAY_BUFFER, buffers[i]);
        gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(values), gl.STATIC_DRAW);
      });
      draw();
    }
    let last = null;
    canvas.addEventListener("pointerdown", (e) => { last = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => { last = null; });
    canvas.addEventListener("pointermove", (e) => {
      if (!last) return;
      const dx = (e.clientX - last[0]) / canvas.clientHeight, dy = (e.clientY - last[1]) / canvas.clientHeight;
      last = [e.clientX, e.clientY];
      if (e.shiftKey || e.buttons === 4) shift = [shift[0] + 1.5 * dx * away, shift[1] + 1.5 * dy * away];
      else { yaw -= 2.5 * dx; pitch = Math.min(Math.max(pitch + 2.5 * dy, -1.5), 1.5); }
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
    by("by-depth").addEventListener("change", () => shown && fill(shown));
    window.addEventListener("resize", draw);
    return { fill };
  })();

  data.frames.forEach((entry, i) => {
    const button = document.createElement("button");
    button.textContent = entry.name;
    button.addEventListener("click", () => show(i));
    by("frames").append(button);
  });
  window.addEventListener("resize", drawBar);
  drawBar();
  show(Math.floor(data.frames.length / 2));
})();
