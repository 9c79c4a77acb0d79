"""The linear algebra of one iteration: normal matrices, Schur elimination, the reduced system.

The reduced system has the poses (six each), the points that take part in distances (three each,
because distances couple points and forbid their elimination), and the intrinsics, in this order.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import splu

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle import _kernels
from lifcal.bundle.focus import NO_FOCUS
from lifcal.bundle.problem import LENGTHS, Problem
from lifcal.bundle.scale import compute_spans
from lifcal.camera._kernels import Centers, undistort_centers_with_jacobian
from lifcal.reconstruction import Reconstruction

N_CHUNKS = 64
"""Number of parts into which sums over points are split. It is a constant, so that results do not
depend on the number of threads."""

MULTIPLY_FROM = 0.15
"""Share of the pairs of views that have a point in common from which one matrix product with zeros
in it is faster than a loop over those pairs."""

LOSSES = {
    "none": _kernels.LOSS_NONE,
    "huber": _kernels.LOSS_HUBER,
    "cauchy": _kernels.LOSS_CAUCHY,
}
"""Robust losses by name, and the numbers by which the compiled loops know them."""


@dataclass(frozen=True)
class Loss:
    """A robust loss on the length of a whitened residual.

    Parameters
    ----------
    name : 'none', 'huber' or 'cauchy'
    scale : float
        Where it begins to bend, in standard deviations.
    noise : float
        Factor on the observations' standard deviations.
    bends : bool
        Whether the normal matrix has the loss' second derivative: fast at the end, slow far away.
    """

    name: str = "none"
    scale: float = 1.0
    noise: float = 1.0
    bends: bool = False

    def packed(self) -> _kernels.LossModel:
        """Return the loss as the kernels take it."""
        return _kernels.LossModel(
            LOSSES[self.name], float(self.scale), 1.0 / self.noise, self.bends
        )

    def weights(self, squares: FloatArray) -> FloatArray:
        """Return the weight of residuals by their squared whitened lengths, (n,)."""
        if self.name == "huber":
            return np.asarray(self.scale / np.sqrt(np.maximum(squares, self.scale**2)))
        if self.name == "cauchy":
            return np.asarray(1.0 / (1.0 + squares / self.scale**2))
        return np.ones_like(squares)


class Layout:
    """What of a problem does not change while it is solved, as the kernels take it."""

    def __init__(self, problem: Problem) -> None:
        observations = problem.observations
        self.problem = problem
        self.n_views = len(observations.view_ids)
        self.n_points = len(observations.point_ids)
        self.n_theta = len(problem.names)
        self.centers, center_index = observations.centers
        self.pairs = _kernels.Pairs(*observations.pairs)
        self.observed = _kernels.Observed(
            centers=center_index,
            xy=observations.points_raw_px,
            types=observations.lens_types,
            whitening=whiten(observations.covariances_px2),
            active=problem.active_mask,
        )
        self.focus = NO_FOCUS if problem.focus is None else problem.focus.packed()
        self.n_tilt = len(problem.start.tilt)

        pair_points, _, pair_obs = self.pairs
        counts = np.bincount(pair_points, minlength=self.n_points)
        self.point_pairs = np.concatenate([[0], np.cumsum(counts)])
        point_obs = pair_obs[self.point_pairs]
        targets = np.linspace(0, len(observations), N_CHUNKS + 1)
        self.chunk_points = np.searchsorted(point_obs, targets)
        self.chunk_points[-1] = self.n_points
        self.chunk_pairs = self.point_pairs[self.chunk_points]

        self.block_rows, self.block_columns, self.row_slots = self._find_blocks()
        squares = float(np.sum(np.square(counts, dtype=np.float64)))
        self.multiplies = squares > MULTIPLY_FROM * self.n_points * self.n_views**2
        self.half_places, self.half_strides, self.half_size = self._place_halves()

        self.kept_points = np.unique(problem.distance_points)
        self.kept = np.zeros(self.n_points, np.bool_)
        self.kept[self.kept_points] = True
        self.structure = _kernels.PointPairs(
            first=self.point_pairs,
            views=self.pairs.views,
            kept=self.kept,
            places=self.half_places,
            strides=self.half_strides,
        )
        self.n_poses = 6 * self.n_views
        self.n_kept = 3 * len(self.kept_points)
        self.size = self.n_poses + self.n_kept + self.n_theta
        # Steps are taken with all poses free: holding one bends the way to the solution, and the
        # damping is enough to keep the world where it is. Covariances need a frame: the first pose
        # of each world.
        self.free = np.ones(self.size, np.bool_)
        self.free[self.n_poses + self.n_kept :] = problem.free
        self.determined = self.free.copy()
        for view in problem.held_views.values():
            self.determined[6 * view : 6 * view + 6] = False
        self._buffers: dict[str, FloatArray] = {}

    @property
    def whitening(self) -> FloatArray:
        """Upper triangular matrices that whiten residuals, (n_obs, 3); see `whiten`."""
        return self.observed.whitening

    @property
    def active(self) -> BoolArray:
        """Mask of the observations that count, (n_obs,)."""
        return self.observed.active

    def with_centers(self, centers: FloatArray) -> Layout:
        """Return the same layout with micro lenses elsewhere."""
        found = copy.copy(self)
        found.centers = centers
        found._buffers = {}
        return found

    def buffer(self, name: str, *shape: int) -> FloatArray:
        """Return an array that the next caller of the same name gets again.

        Large arrays are asked for once: fresh memory costs more time than the sums in it.
        """
        if name not in self._buffers:
            self._buffers[name] = np.zeros(shape)
        return self._buffers[name]

    def _find_blocks(self) -> tuple[IntArray, IntArray, IntArray]:
        """Find the pairs of views that share a point: rows, columns and slots of the blocks."""
        pair_points, pair_views, _ = self.pairs
        seen = sparse.csr_matrix(
            (np.ones(len(pair_points), np.int32), (pair_views, pair_points)),
            shape=(self.n_views, self.n_points),
        )
        shared = sparse.triu(seen @ seen.T, format="csr")
        shared.sort_indices()
        coordinates = shared.tocoo()
        rows = coordinates.row.astype(np.int64)
        columns = coordinates.col.astype(np.int64)
        slots = np.full((self.n_views, self.n_views), -1, np.int64)
        slots[rows, columns] = np.arange(len(rows))
        return rows, columns, slots

    def _place_halves(self) -> tuple[IntArray, IntArray, int]:
        """Return where the coupling of each pair lies, the way to its next row, and the size.

        One matrix for each point: of the views that see it, or of all views, where the matrices of
        all points are one that is multiplied with itself.
        """
        pair_points, pair_views, _ = self.pairs
        if self.multiplies:
            width = 6 * self.n_views
            places = 3 * width * pair_points + 6 * pair_views
            return places, np.full(self.n_points, width), 3 * width * self.n_points
        first = self.point_pairs[pair_points]
        places = 18 * first + 6 * (np.arange(len(pair_points)) - first)
        return places, 6 * np.diff(self.point_pairs), 18 * len(pair_points)

    @property
    def theta_part(self) -> slice:
        """The intrinsics' place in the reduced system."""
        return slice(self.n_poses + self.n_kept, self.size)

    def undistort_centers(self, state: Reconstruction) -> Centers:
        """Return the undistorted centers and their derivatives by c and by the distortion."""
        centers = Centers.empty(len(self.centers), len(state.distortion.parameters))
        undistort_centers_with_jacobian(
            state.distortion.model_id,
            state.distortion.parameters,
            state.distortion.fold_radius_px,
            state.array.principal_x_px,
            state.array.principal_y_px,
            self.centers,
            centers,
        )
        return centers

    def _pack(
        self, state: Reconstruction
    ) -> tuple[_kernels.Camera, _kernels.Scene, _kernels.Pairs, _kernels.Observed, Centers]:
        """Return the arguments that all loops over observations begin with."""
        camera = _kernels.Camera(
            theta=state.as_vector(),
            k=state.distortion.parameters,
            form=_kernels.CameraForm(state.distortion.model_id, self.focus, self.n_tilt),
        )
        return camera, pack_scene(state), self.pairs, self.observed, self.undistort_centers(state)

    def compute_residuals(self, state: Reconstruction) -> FloatArray:
        """Return seen minus measured, (n_obs, 2), px, of all observations, active or not."""
        out = np.empty((len(self.observed.xy), 2))
        _kernels.compute_residuals(*self._pack(state), out)
        return out

    def whitened_lengths(self, residuals_px: FloatArray) -> FloatArray:
        """Return the length of each residual in its standard deviations, (n_obs,)."""
        w = self.whitening
        return np.hypot(
            w[:, _kernels.WHITE_XX] * residuals_px[:, 0]
            + w[:, _kernels.WHITE_XY] * residuals_px[:, 1],
            w[:, _kernels.WHITE_YY] * residuals_px[:, 1],
        )

    def compute_rows(self, state: Reconstruction) -> FloatArray:
        """Return each observation's derivative by X_C and the intrinsics, (n_obs, 2, 3 + n)."""
        rows = np.empty((len(self.observed.xy), 2, _kernels.POINT + self.n_theta))
        _kernels.compute_rows(*self._pack(state), rows)
        return rows

    def compute_cost(self, state: Reconstruction, loss: Loss) -> float:
        """Return the cost along the value path; NaN where a point has no projection."""
        costs = np.empty(N_CHUNKS)
        _kernels.compute_cost(*self._pack(state), loss.packed(), self.chunk_pairs, costs)
        _, residuals = extra_rows(self, state)
        return 0.5 * float(costs.sum() + residuals @ residuals)

    def linearize(self, state: Reconstruction, loss: Loss) -> Linearization:
        """Return cost, gradient and normal matrices, which hold until the next call."""
        pair_normal = self.buffer("pair_normal", len(self.pairs.points), 3, 4 + self.n_theta)
        chunk_normal = np.empty((N_CHUNKS, self.n_theta, self.n_theta + 1))
        costs = np.empty(N_CHUNKS)
        normals = _kernels.Normals(pair_normal, chunk_normal, costs)
        _kernels.linearize(*self._pack(state), loss.packed(), self.chunk_pairs, normals)
        jacobian, residuals = extra_rows(self, state)
        total = chunk_normal.sum(axis=0)  # in order: the first axis is added one by one
        point_normal = self.buffer("point_normal", self.n_points, 3, 4 + self.n_theta)
        _kernels.sum_points(pack_scene(state), self.structure, pair_normal, point_normal)
        return Linearization(
            layout=self,
            state=state,
            cost=0.5 * float(costs.sum() + residuals @ residuals),
            pair_normal=pair_normal,
            point_normal=point_normal,
            theta_normal=_mirror(total[:, :-1]),
            theta_gradient=total[:, -1].copy(),
            extra_jacobian=jacobian,
            extra_residuals=residuals,
        )


@dataclass(frozen=True, eq=False)
class Step:
    """A step of all unknowns, and what the linear model expects of it."""

    intrinsics: FloatArray
    poses: FloatArray
    points: FloatArray
    predicted: float
    """By how much the cost should fall."""
    largest: float
    """Largest component, in standard deviations that it would have if it were alone."""


@dataclass(frozen=True, eq=False)
class Linearization:
    """The problem around a state."""

    layout: Layout
    state: Reconstruction
    cost: float
    pair_normal: FloatArray
    point_normal: FloatArray
    theta_normal: FloatArray
    theta_gradient: FloatArray
    extra_jacobian: sparse.csr_matrix
    extra_residuals: FloatArray

    def reduce(self, damping: float) -> ReducedSystem:
        """Eliminate the points; the diagonal is multiplied by 1 + damping.

        The result holds until the next call.
        """
        layout, state = self.layout, self.state
        scene, n_theta = pack_scene(state), layout.n_theta
        eliminated = _kernels.Eliminated(
            factors=layout.buffer("factors", layout.n_points, 3, 3),
            pair_half=layout.buffer("pair_half", layout.half_size),
            point_half=layout.buffer("point_half", layout.n_points, 3, n_theta + 1),
        )
        chunk_out = np.empty((N_CHUNKS, n_theta, n_theta + 1))
        failed = np.zeros(N_CHUNKS, np.int64)
        _kernels.eliminate_points(
            scene,
            layout.structure,
            self.pair_normal,
            self.point_normal,
            damping,
            layout.chunk_points,
            eliminated,
            chunk_out,
            failed,
        )
        reduced = _kernels.Reduced(
            row_slots=layout.row_slots,
            blocks=layout.buffer("blocks", len(layout.block_rows), 6, 6),
            borders=np.empty((layout.n_views, 6, n_theta + 1)),
            diagonals=np.empty((layout.n_views, 6)),
            gradients=np.empty((layout.n_views, 6)),
        )
        _kernels.reduce_views(
            scene, layout.structure, self.pair_normal, eliminated, layout.multiplies, reduced
        )
        blocks, borders = reduced.blocks, reduced.borders
        if layout.multiplies:
            wide = eliminated.pair_half.reshape(3 * layout.n_points, layout.n_poses)
            coupled = (wide.T @ wide).reshape(layout.n_views, 6, layout.n_views, 6)
            blocks -= coupled[layout.block_rows, :, layout.block_columns, :]
        products = chunk_out.sum(axis=0)
        theta_block = self.theta_normal - _mirror(products[:, :-1])
        theta_rhs = self.theta_gradient - products[:, -1]

        # From here on in the coordinates of the steps, with the rows of the scale and the priors.
        change = layout.problem.step_jacobian(state)
        whole = sparse.block_diag(
            [sparse.eye(layout.n_poses + layout.n_kept), change], format="csr"
        )
        extra = self.extra_jacobian @ whole
        extra_normal = (extra.T @ extra).tocsr()
        extra_gradient = np.asarray(extra.T @ self.extra_residuals)

        kept = _kept_blocks(self)
        gradient = np.concatenate(
            [reduced.gradients.ravel(), kept.gradient, change.T @ self.theta_gradient]
        )
        gradient += extra_gradient
        diagonal = np.concatenate(
            [
                reduced.diagonals.ravel(),
                kept.diagonal,
                np.diag(change.T @ self.theta_normal @ change),
            ]
        )
        diagonal += extra_normal.diagonal()
        reduced_gradient = np.concatenate(
            [borders[:, :, -1].ravel(), kept.gradient, change.T @ theta_rhs]
        )
        reduced_gradient += extra_gradient
        border = np.concatenate([borders[:, :, :-1].reshape(-1, n_theta), kept.border])
        return ReducedSystem(
            linearization=self,
            damping=damping,
            failed=int(failed.sum()),
            eliminated=eliminated,
            blocks=blocks,
            kept=kept,
            border=border @ change,
            theta_block=change.T @ theta_block @ change,
            extra_normal=extra_normal,
            gradient=gradient,
            reduced_gradient=reduced_gradient,
            diagonal=diagonal,
            change=change,
        )


def pack_scene(state: Reconstruction) -> _kernels.Scene:
    """Return poses and points as the kernels take them."""
    return _kernels.Scene(state.rotations, state.translations_mm, state.points_world_mm)


def pose_jacobians(points_cam_mm: FloatArray) -> FloatArray:
    """Return the derivative of points by the step of their pose, [-[x]_x | I], (n, 3, 6)."""
    x, y, z = points_cam_mm.T
    out = np.zeros((len(x), 3, 6))
    out[:, [0, 1, 2], [3, 4, 5]] = 1.0
    out[:, 0, 1], out[:, 0, 2] = z, -y
    out[:, 1, 0], out[:, 1, 2] = -z, x
    out[:, 2, 0], out[:, 2, 1] = y, -x
    return out


@dataclass(frozen=True, eq=False)
class _Kept:
    """Blocks of the points that are not eliminated."""

    matrix: sparse.csr_matrix
    """Upper triangle of (poses, kept points) that they add to."""
    border: FloatArray
    diagonal: FloatArray
    gradient: FloatArray


def _kept_blocks(linearization: Linearization) -> _Kept:
    layout, state = linearization.layout, linearization.state
    size = layout.n_poses + layout.n_kept
    chosen = layout.kept_points
    if len(chosen) == 0:
        empty = np.zeros(0)
        return _Kept(sparse.csr_matrix((size, size)), np.zeros((0, layout.n_theta)), empty, empty)
    point_normal = linearization.point_normal[chosen]
    place = np.full(layout.n_points, -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    pair_points, pair_views, _ = layout.pairs
    pairs = np.flatnonzero(layout.kept[pair_points])
    views, points = pair_views[pairs], pair_points[pairs]
    rotations = state.rotations[views]
    x_cam = (
        np.einsum("pij,pj->pi", rotations, state.points_world_mm[points])
        + state.translations_mm[views]
    )
    to_pose = pose_jacobians(x_cam)
    normal = linearization.pair_normal[pairs][:, :, :3]
    coupling = np.transpose(to_pose, (0, 2, 1)) @ normal @ rotations  # (n, 6, 3)
    rows = (6 * views)[:, None, None] + np.arange(6)[None, :, None]
    columns = layout.n_poses + (3 * place[points])[:, None, None] + np.arange(3)[None, None, :]
    rows, columns = (np.broadcast_to(index, coupling.shape) for index in (rows, columns))
    own = point_normal[:, :, :3]
    base = layout.n_poses + 3 * np.arange(len(chosen))[:, None, None]
    own_rows = np.broadcast_to(base + np.arange(3)[None, :, None], own.shape)
    own_columns = np.broadcast_to(base + np.arange(3)[None, None, :], own.shape)
    upper = own_rows <= own_columns
    matrix = sparse.csr_matrix(
        (
            np.concatenate([coupling.ravel(), own[upper]]),
            (
                np.concatenate([rows.ravel(), own_rows[upper]]),
                np.concatenate([columns.ravel(), own_columns[upper]]),
            ),
        ),
        shape=(size, size),
    )
    return _Kept(
        matrix,
        point_normal[:, :, 3:-1].reshape(layout.n_kept, -1),
        np.einsum("pii->pi", own).ravel(),
        point_normal[:, :, -1].ravel(),
    )


@dataclass(frozen=True, eq=False)
class ReducedSystem:
    """Poses, kept points and intrinsics, with all other points eliminated."""

    linearization: Linearization
    damping: float
    failed: int
    """Number of points whose own block is singular."""
    eliminated: _kernels.Eliminated
    blocks: FloatArray
    kept: _Kept
    border: FloatArray
    theta_block: FloatArray
    extra_normal: sparse.csr_matrix
    gradient: FloatArray
    """Derivative of the cost by the reduced unknowns."""
    reduced_gradient: FloatArray
    """The same after elimination: the right-hand side."""
    diagonal: FloatArray
    """Diagonal of the normal matrix before elimination."""
    change: FloatArray
    """Derivative of the intrinsics by what is stepped."""

    @property
    def layout(self) -> Layout:
        """Layout of the problem."""
        return self.linearization.layout

    @property
    def factors(self) -> FloatArray:
        """Factors of the points' normal matrices, (n_points, 3, 3); see `_kernels.Eliminated`."""
        return self.eliminated.factors

    @property
    def pair_half(self) -> FloatArray:
        """Couplings of poses and points divided by the factors; see `_kernels.Eliminated`."""
        return self.eliminated.pair_half

    @property
    def point_half(self) -> FloatArray:
        """Couplings of intrinsics and points divided by the factors, (n_points, 3, n_theta + 1)."""
        return self.eliminated.point_half

    def dense(self) -> FloatArray:
        """Return the whole symmetric matrix, with the damping."""
        layout = self.layout
        size, part = layout.size, layout.theta_part
        matrix = np.zeros((size, size))
        poses = matrix[: layout.n_poses, : layout.n_poses].reshape(
            layout.n_views, 6, layout.n_views, 6
        )
        poses[layout.block_rows, :, layout.block_columns, :] = self.blocks
        inner = part.start
        if layout.n_kept:
            matrix[:inner, :inner] += self.kept.matrix.toarray()
        matrix[:inner, part] = self.border
        matrix[part, part] = self.theta_block
        matrix = _mirror(matrix)
        matrix += self.extra_normal.toarray()
        matrix[np.diag_indices(size)] += self.damping * self.diagonal
        matrix += self._gauge_normal().toarray()
        return matrix

    def _gauge_normal(self) -> sparse.csr_matrix:
        """Hold what known positions on one line leave free: a turn about the line."""
        layout, state = self.layout, self.linearization.state
        normal = sparse.csr_matrix((layout.size, layout.size))
        for view, axis in free_axes(layout.problem).items():
            row = np.zeros(layout.size)
            turns = slice(6 * view, 6 * view + 3)
            row[turns] = state.rotations[view] @ axis
            row *= np.sqrt(self.diagonal[turns].max())
            line = sparse.csr_matrix(row)
            normal = (normal + line.T @ line).tocsr()
        return normal

    def solve(self, sparse_from_views: int) -> Step | None:
        """Return the step, or None where the matrix is not positive definite."""
        layout = self.layout
        if self.failed:
            return None
        free = np.flatnonzero(layout.free)
        reduced = np.zeros(layout.size)
        if layout.n_views >= sparse_from_views:
            solution = self._solve_sparse(free)
        else:
            factored = ScaledCholesky.of(self.dense()[np.ix_(free, free)])
            solution = None if factored is None else factored.solve(-self.reduced_gradient[free])
        if solution is None or not np.isfinite(solution).all():
            return None
        reduced[free] = solution
        return self.expand(reduced)

    def _solve_sparse(self, free: IntArray) -> FloatArray | None:
        """Factor poses and kept points sparsely, with the intrinsics as a border."""
        layout = self.layout
        inner = layout.theta_part.start
        rows = (6 * layout.block_rows)[:, None, None] + np.arange(6)[None, :, None]
        columns = (6 * layout.block_columns)[:, None, None] + np.arange(6)[None, None, :]
        rows, columns = (np.broadcast_to(index, self.blocks.shape) for index in (rows, columns))
        upper = rows <= columns
        poses = sparse.csr_matrix(
            (self.blocks[upper], (rows[upper], columns[upper])), shape=(inner, inner)
        )
        matrix = poses + self.kept.matrix
        matrix = matrix + sparse.triu(matrix, 1).T
        extra = self.extra_normal + self._gauge_normal()
        extra = extra + sparse.diags(self.damping * self.diagonal)
        matrix = (matrix + extra[:inner, :inner]).tocsc()
        border = self.border + extra[:inner, inner:].toarray()
        corner = self.theta_block + extra[inner:, inner:].toarray()
        first, last = free[free < inner], free[free >= inner] - inner
        # a symmetric ordering without pivots: the matrix is positive definite
        try:
            factor = splu(
                matrix[first][:, first].tocsc(),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            return None
        border, corner = border[np.ix_(first, last)], corner[np.ix_(last, last)]
        rhs_first, rhs_last = -self.reduced_gradient[first], -self.reduced_gradient[inner:][last]
        solved = factor.solve(np.column_stack([border, rhs_first]))
        factored = ScaledCholesky.of(corner - border.T @ solved[:, :-1])
        if factored is None:
            return None
        tail = factored.solve(rhs_last - border.T @ solved[:, -1])
        return np.concatenate([solved[:, -1] - solved[:, :-1] @ tail, tail])

    def expand(self, reduced: FloatArray) -> Step:
        """Return the step of all unknowns for a step of the reduced ones."""
        layout = self.layout
        part = layout.theta_part
        poses = reduced[: layout.n_poses].reshape(-1, 6)
        points = np.empty((layout.n_points, 3))
        _kernels.back_substitute(
            layout.structure,
            self.eliminated,
            poses,
            self.change @ reduced[part],
            points,
        )
        points[layout.kept_points] = reduced[layout.n_poses : part.start].reshape(-1, 3)
        diagonal, gradient = self.point_diagonal(), self.point_gradient()
        single = ~layout.kept
        linear = float(self.gradient @ reduced) + float((gradient * points)[single].sum())
        damped = float(self.diagonal @ reduced**2) + float((diagonal * points**2)[single].sum())
        largest = max(
            float((np.abs(reduced) * np.sqrt(self.diagonal)).max()),
            float((np.abs(points) * np.sqrt(diagonal)).max()),
        )
        return Step(
            intrinsics=reduced[part],
            poses=poses,
            points=points,
            predicted=0.5 * (self.damping * damped - linear),
            largest=largest,
        )

    def point_diagonal(self) -> FloatArray:
        """Diagonal of the normal matrix for each point, (n_points, 3)."""
        return np.asarray(np.einsum("pii->pi", self.linearization.point_normal[:, :, :3]))

    def point_gradient(self) -> FloatArray:
        """Derivative of the cost by each point, (n_points, 3), without what distances add."""
        return self.linearization.point_normal[:, :, -1]

    def largest_gradient(self) -> float:
        """Return the largest entry of the gradient, each over the root of its diagonal."""
        layout = self.layout
        free = layout.free & (self.diagonal > 0.0)
        reduced = np.abs(self.gradient[free]) / np.sqrt(self.diagonal[free])
        single = ~layout.kept
        diagonal = np.maximum(self.point_diagonal()[single], 1e-300)
        points = np.abs(self.point_gradient()[single]) / np.sqrt(diagonal)
        return float(max(reduced.max(initial=0.0), points.max(initial=0.0)))


# Rows beside the observations: priors, distances, known positions.


def extra_rows(layout: Layout, state: Reconstruction) -> tuple[sparse.csr_matrix, FloatArray]:
    """Return whitened Jacobian (n, size; intrinsics in the array form) and residuals (n,)."""
    problem = layout.problem
    rows: list[IntArray] = []
    columns: list[IntArray] = []
    values: list[FloatArray] = []
    residuals: list[FloatArray] = []
    start = 0

    def add(row: Any, column: Any, value: Any) -> None:
        value = np.asarray(value, np.float64)
        rows.append(np.broadcast_to(np.asarray(row, np.int64) + start, value.shape).ravel())
        columns.append(np.broadcast_to(np.asarray(column, np.int64), value.shape).ravel())
        values.append(value.ravel())

    priors = problem.all_priors
    if priors:
        vector = state.as_vector()
        lengths = any(name in LENGTHS for name in priors)
        if lengths:
            physical = state.array.to_physical(problem.pixel_size_mm).as_vector()
            by_array = state.array.physical_jacobian(problem.pixel_size_mm)
        for i, (name, prior) in enumerate(priors.items()):
            if name in LENGTHS:
                index = LENGTHS.index(name)
                value, slope = physical[index], by_array[index]
                if prior.follows is not None:
                    other = LENGTHS.index(prior.follows.name)
                    value = value - prior.follows.slope * (physical[other] - prior.follows.value)
                    slope = slope - prior.follows.slope * by_array[other]
                columns_of = layout.theta_part.start + np.arange(5)
            else:
                index = problem.names.index(name)
                value, slope = vector[index], np.ones(1)
                columns_of = layout.theta_part.start + np.array([index])
            add(i, columns_of, slope / prior.sigma)
            residuals.append(np.array([(value - prior.value) / prior.sigma]))
        start += len(priors)
    if problem.joint is not None:
        joint = problem.joint
        held = np.array([problem.names.index(name) for name in joint.names])
        add(
            np.arange(len(held))[:, None],
            layout.theta_part.start + held[None, :],
            joint.whitening,
        )
        residuals.append(joint.whitening @ (state.as_vector()[held] - joint.mean))
        start += len(held)
    if problem.distances is not None:
        ends = problem.distance_points
        span = compute_spans(state.points_world_mm, ends)
        length = np.linalg.norm(span, axis=1)
        sigma = problem.distances.sigmas_mm
        slope = span / (np.maximum(length, 1e-12) * sigma)[:, None]
        # An end is the mean of its members, each of which moves it by its share.
        place = layout.n_poses + 3 * np.searchsorted(layout.kept_points, ends)
        share = np.array([1.0, -1.0])[:, None, None] / ends.shape[2]
        add(
            np.arange(len(ends))[:, None, None, None],
            place[..., None] + np.arange(3),
            np.broadcast_to(share * slope[:, None, None, :], (*ends.shape, 3)),
        )
        residuals.append((length - problem.distances.lengths_mm) / sigma)
        start += len(ends)
    if problem.positions is not None:
        views, sigma = problem.position_views, problem.positions.sigmas_mm
        rotations = state.rotations[views]
        error = state.positions_world_mm()[views] - problem.positions.positions_world_mm
        # A step shifts the position by -R^T times its translation; its rotation does nothing.
        slope3 = -np.transpose(rotations, (0, 2, 1)) / sigma[:, None, None]
        row = (3 * np.arange(len(views)))[:, None, None] + np.arange(3)[None, :, None]
        add(row, (6 * views)[:, None, None] + 3 + np.arange(3)[None, None, :], slope3)
        residuals.append((error / sigma[:, None]).ravel())
    if not residuals:
        return sparse.csr_matrix((0, layout.size)), np.zeros(0)
    vector = np.concatenate(residuals)
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(vector), layout.size),
    )
    return matrix, vector


def free_axes(problem: Problem) -> dict[int, FloatArray]:
    """Return the line on which all known positions of a world lie, where they do.

    The line is a direction, by the first view of its world.
    """
    if problem.positions is None:
        return {}
    found: dict[int, FloatArray] = {}
    for world in np.unique(problem.position_worlds).tolist():
        mine = problem.position_worlds == world
        places = problem.positions.positions_world_mm[mine]
        _, spread, axes = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)
        sigma = float(problem.positions.sigmas_mm[mine].max())
        if len(spread) == 1 or spread[1] <= max(3.0 * sigma, 1e-3 * spread[0]):
            found[int(problem.worlds.first_views[world])] = axes[0]
    return found


def whiten(covariances_px2: FloatArray) -> FloatArray:
    """Return the upper triangular root of each inverse: (n, 3) as xx, xy, yy."""
    a, b, c = covariances_px2[:, 0, 0], covariances_px2[:, 0, 1], covariances_px2[:, 1, 1]
    # W^T W = inverse, with W = [[1 / s, -b / (c s)], [0, 1 / sqrt(c)]], s^2 = a - b^2 / c
    first = 1.0 / np.sqrt(a - b * b / c)
    return np.column_stack([first, -first * b / c, 1.0 / np.sqrt(c)])


def _mirror(upper: FloatArray) -> FloatArray:
    """Return the symmetric matrix of an upper triangle."""
    triangle = np.triu(upper)
    return triangle + np.triu(upper, 1).T


@dataclass(frozen=True, eq=False)
class ScaledCholesky:
    """A symmetric positive definite matrix, factored with its diagonal scaled to one.

    So units do not matter.
    """

    factor: FloatArray
    scale: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> ScaledCholesky | None:
        """Factor a matrix; None if it is not positive definite."""
        diagonal = np.diag(matrix)
        if not (diagonal > 0.0).all():
            return None
        scale = 1.0 / np.sqrt(diagonal)
        try:
            factor, _ = linalg.cho_factor(matrix * scale[:, None] * scale, lower=True)
        except (linalg.LinAlgError, ValueError):
            return None
        return cls(factor, scale)

    def solve(self, rhs: FloatArray) -> FloatArray:
        """Return the solution for a right-hand side, (n,) or (n, m)."""
        scale = self.scale if rhs.ndim == 1 else self.scale[:, None]
        return np.asarray(scale * linalg.cho_solve((self.factor, True), scale * rhs))


def count_parameters(layout: Layout, active: BoolArray) -> int:
    """Return the number of unknowns that the active observations determine."""
    pair_points, _, _ = layout.pairs
    used = np.add.reduceat(active, layout.pairs.first_obs[:-1]) > 0
    points = np.zeros(layout.n_points, np.bool_)
    points[pair_points[used]] = True
    return int(layout.determined.sum()) + 3 * int((points & ~layout.kept).sum())
